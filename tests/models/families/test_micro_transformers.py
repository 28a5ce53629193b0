"""What timm's users expect of every transformer here, on the small sizes."""

from copy import deepcopy

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

from retinoscope import load_model
from retinoscope.models.checkpoint import load_weights
from retinoscope.models.families import (
    coat_cifar,
    convit_cifar,
    levit_cifar,
    transformers_cifar,
)
from sampling import sampled

HOMES = (transformers_cifar, convit_cifar, levit_cifar, coat_cifar)
NAMES = [name for home in HOMES for name in home.default_cfgs]
MICRO = [name for name in NAMES if name.startswith("micro_")]
CHANNELS = {
    "micro_vit": [48] * 3, "micro_vit_gap": [48] * 3, "micro_mixer": [48] * 3,
    "micro_convit": [48] * 3, "micro_pit": [16, 32, 64], "micro_swin": [16, 32, 64],
    "micro_twins": [16, 32, 64], "micro_levit": [32, 40, 56], "micro_coat_lite": [16, 24, 40, 48],
}  # fmt: skip
GRIDS = {
    "micro_vit": [8] * 3, "micro_vit_gap": [8] * 3, "micro_mixer": [8] * 3,
    "micro_convit": [8] * 3, "micro_pit": [15, 8, 4], "micro_swin": [16, 8, 4],
    "micro_twins": [16, 8, 4], "micro_levit": [8, 4, 2], "micro_coat_lite": [16, 8, 4, 2],
}  # fmt: skip


@pytest.fixture
def images():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_all_names_are_here():
    sizes = [f"vit_{size}_patch{patch}_cifar" for size in ("tiny", "small") for patch in (2, 4, 8)]
    others = [
        "vit_tiny_patch2_gap_cifar", "vit_tiny_patch4_gap_cifar", "pit_tiny_cifar",
        "swin_tiny_cifar", "twins_small_cifar", "mixer_tiny_cifar", "convit_tiny_cifar",
        "levit_128s_cifar", "coat_lite_tiny_cifar",
    ]  # fmt: skip
    assert sorted(NAMES) == sorted(sizes + others + list(CHANNELS))
    assert set(MICRO) == set(CHANNELS)


@pytest.mark.parametrize("name", NAMES)
def test_configuration_names_what_is_there(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    cfg, classes = model.pretrained_cfg, 10 if name in MICRO else 100
    assert (cfg["input_size"], cfg["num_classes"], cfg["architecture"]) == (
        (3, 32, 32),
        classes,
        name,
    )
    assert model.num_classes == classes
    assert model.get_submodule(cfg["first_conv"]).in_channels == 3
    assert model.get_submodule(cfg["classifier"]).out_features == classes


@pytest.mark.parametrize("name", MICRO)
def test_micro_is_small(name, images):
    model = timm.create_model(name).eval().requires_grad_(False)
    assert 0.10e6 <= sum(p.numel() for p in model.parameters()) <= 0.17e6
    with FlopCounterMode(display=False) as counter:
        model(images[:1])
    assert counter.get_total_flops() <= 2 * 10e6  # a multiplication and an addition each


@pytest.mark.parametrize("name", MICRO)
def test_heads_and_channels_can_be_changed(name, images):
    model = timm.create_model(name, num_classes=7, in_chans=1).eval()
    assert model(images[:, :1]).shape == (2, 7)
    model.reset_classifier(3)
    assert model(images[:, :1]).shape == (2, 3)
    model.reset_classifier(0)
    pooled = model(images[:, :1])
    assert pooled.shape == (2, model.num_features)
    bare = timm.create_model(name, num_classes=0).eval()
    assert bare(images).shape == (2, bare.num_features)
    features = bare.forward_features(images)
    torch.testing.assert_close(bare.forward_head(features, pre_logits=True), bare(images))


@pytest.mark.parametrize("name", MICRO)
def test_features_only_gives_the_intermediates(name, images, order_one):
    model = order_one(name)
    features = timm.create_model(name, features_only=True).eval()
    found = [f.shape for f in features(images)]
    nhwc = str(features.output_fmt).endswith("NHWC")  # Swin, as timm's own
    maps = [(2, c, s, s) for c, s in zip(CHANNELS[name], GRIDS[name], strict=True)]
    assert found == ([(n, h, w, c) for n, c, h, w in maps] if nhwc else maps)
    assert features.feature_info.channels() == CHANNELS[name]
    # Overlapping patches lose less than one position at the border.
    for side, reduction in zip(GRIDS[name], features.feature_info.reduction(), strict=True):
        assert 0 <= 32 / reduction - side <= 1
    final, states = model.forward_intermediates(images, indices=len(maps))
    assert [state.shape for state in states] == maps
    torch.testing.assert_close(final, model.forward_features(images))
    one = timm.create_model(name, features_only=True, out_indices=(1,)).eval()
    assert len(one(images)) == 1


@pytest.mark.parametrize("name", MICRO)
def test_every_parameter_learns_and_eval_mode_can_be_differentiated_twice(name, images, order_one):
    model = order_one(name).train()
    model(images).square().sum().backward()
    missing = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()
    ]
    assert not missing
    model.eval()
    for _ in range(2):
        model(images).sum().backward()


@pytest.mark.parametrize("name", sampled(MICRO, "micro_vit"))
def test_exports_with_any_batch(name, images, order_one):
    model = order_one(name)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},), strict=False)
    more = torch.rand(5, 3, 32, 32)
    torch.testing.assert_close(program.module()(more), model(more))


@pytest.mark.parametrize("name", MICRO)
def test_bfloat16_after_a_forward_in_float(name, images, order_one):
    model = order_one(name)
    expected = model(images)
    found = model.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert found.dtype == torch.bfloat16
    similarity = torch.cosine_similarity(found.float(), expected)
    assert similarity.min() > 0.98  # eight bits of mantissa through two dozen layers


@pytest.mark.parametrize("name", MICRO)
def test_safetensors_round_trip(name, images, order_one, tmp_path):
    model = order_one(name)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other = timm.create_model(name).eval()
    before = other(images)  # what a first pass keeps must not outlive the weights it was made of
    load_weights(other, tmp_path / "weights.safetensors")
    torch.testing.assert_close(other(images), model(images), rtol=0, atol=0)
    assert not torch.allclose(other(images), before)
    loaded = load_model(name, weights=tmp_path / "weights.safetensors")
    torch.testing.assert_close(loaded.model(images), model(images), rtol=0, atol=0)


@pytest.mark.parametrize("name", MICRO)
def test_another_image_size_and_a_copy(name):
    model = timm.create_model(name, img_size=64).eval()
    images = torch.rand(1, 3, 64, 64)
    assert model(images).shape == (1, 10)
    torch.testing.assert_close(deepcopy(model)(images), model(images), rtol=0, atol=0)


def test_untrained_models_say_so():
    with pytest.raises(RuntimeError, match="No pretrained weights exist"):
        timm.create_model("micro_mixer", pretrained=True)
