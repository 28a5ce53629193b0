import pytest
import timm
import torch

from retinoscope import dissect
from retinoscope.models.families import transformers_cifar
from sampling import sampled

SKETCHES = {
    "vit_tiny_patch2_cifar": "AM" * 12,
    "vit_small_patch8_cifar": "AM" * 12,
    "vit_tiny_patch4_gap_cifar": "AM" * 12,
    "micro_vit": "AM" * 6,
    "micro_vit_gap": "AM" * 6,
    "pit_tiny_cifar": "AM" * 2 + "|C↓" + "AM" * 6 + "|C↓" + "AM" * 4,
    "micro_pit": "AMAM|C↓AMAM|C↓AMAM",
    "swin_tiny_cifar": "AMAM|C↓AMAM|C↓" + "AM" * 6 + "|C↓AMAM",
    "micro_swin": "AMAM|C↓AMAM|C↓AMAM",
    "twins_small_cifar": "AMCAM|C↓AMCAM|C↓AMC" + "AM" * 9 + "|C↓AMC" + "AM" * 3,
    "micro_twins": "AMCAM|C↓AMCAM|C↓AMCAM",
    "mixer_tiny_cifar": "mM" * 8,
    "micro_mixer": "mM" * 6,
}  # fmt: skip
GRIDS = {
    "vit_tiny_patch2_cifar": ["16×16+1"],
    "vit_small_patch8_cifar": ["4×4+1"],
    "vit_tiny_patch4_gap_cifar": ["8×8"],
    "micro_vit": ["8×8+1"],
    "micro_vit_gap": ["8×8"],
    "pit_tiny_cifar": ["31×31+1", "16×16+1", "8×8+1"],
    "micro_pit": ["15×15+1", "8×8+1", "4×4+1"],
    "swin_tiny_cifar": ["32×32", "16×16", "8×8", "4×4"],
    "micro_swin": ["16×16", "8×8", "4×4"],
    "twins_small_cifar": ["32×32", "16×16", "8×8", "4×4"],
    "micro_twins": ["16×16", "8×8", "4×4"],
    "mixer_tiny_cifar": ["16×16"],
    "micro_mixer": ["8×8"],
}
MILLIONS = {
    "vit_tiny_patch2_cifar": 5.40,
    "vit_tiny_patch2_gap_cifar": 5.40,
    "vit_small_patch2_cifar": 21.42,
    "pit_tiny_cifar": 4.58,
    "swin_tiny_cifar": 27.56,
    "twins_small_cifar": 23.60,
    "mixer_tiny_cifar": 4.77,
}


def count(name: str) -> int:
    with torch.device("meta"):
        model = timm.create_model(name)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", MILLIONS)
def test_counts_are_those_of_the_papers_models(name):
    assert round(count(name) / 1e6, 2) == MILLIONS[name]


@pytest.mark.parametrize(("size", "width"), [("tiny", 192), ("small", 384)])
@pytest.mark.parametrize("patch", [4, 8])
def test_larger_patches_change_the_embedding_only(size, width, patch):
    """Of each channel, 3p² weights in place of 12, and (32 / p)² positions in place of 256."""
    more = width * (3 * patch**2 - 12) - width * (256 - (32 // patch) ** 2)
    found = count(f"vit_{size}_patch{patch}_cifar") - count(f"vit_{size}_patch2_cifar")
    assert found == more


def test_mean_pooling_saves_the_class_token_and_its_position():
    saved = count("vit_tiny_patch4_cifar") - count("vit_tiny_patch4_gap_cifar")
    assert saved == 2 * 192
    assert count("micro_vit") - count("micro_vit_gap") == 2 * 48


ALIKE = {
    "vit_tiny_patch4_cifar": "vit_tiny_patch2_cifar",
    "vit_tiny_patch8_cifar": "vit_tiny_patch2_cifar",
    "vit_small_patch2_cifar": "vit_small_patch8_cifar",
    "vit_small_patch4_cifar": "vit_small_patch8_cifar",
    "vit_tiny_patch2_gap_cifar": "vit_tiny_patch4_gap_cifar",
}


def test_every_model_has_a_sketch_or_is_like_one_that_has():
    assert set(SKETCHES) | set(ALIKE) == set(transformers_cifar.default_cfgs)


@pytest.mark.parametrize("name", ALIKE)
def test_patches_of_another_size_leave_the_layout_alone(name):
    with torch.device("meta"):
        model, other = timm.create_model(name), timm.create_model(ALIKE[name])
    layouts = [[(n, type(m)) for n, m in one.named_modules()] for one in (model, other)]
    assert layouts[0] == layouts[1]
    assert model.patch_embed.patch_size != other.patch_embed.patch_size
    assert model.patch_embed.patch_size[0] == int(name.split("patch")[1][0])
    assert model.global_pool == other.global_pool


MICRO = [name for name in SKETCHES if name.startswith("micro_")]


@pytest.mark.parametrize("name", sampled(SKETCHES, *MICRO))
def test_anatomy_is_the_layout(name):
    model = timm.create_model(name).eval()
    anatomy = dissect(model, 32)
    assert anatomy.sketch == SKETCHES[name]
    assert anatomy.parameters == sum(p.numel() for p in model.parameters())
    grids = [str(unit.grid) for unit in anatomy if unit.kind != "head"]
    assert list(dict.fromkeys(grids)) == GRIDS[name]


def test_pit_and_twins_know_their_reductions():
    """timm's own say 0 and 4 where these maps are as large as the image."""
    with torch.device("meta"):
        pit = timm.create_model("pit_tiny_cifar", features_only=True)
        twins = timm.create_model("twins_small_cifar", features_only=True)
    assert pit.feature_info.reduction() == [1, 2, 4]
    assert twins.feature_info.reduction() == [1, 2, 4, 8]
    for place, module in enumerate(twins.feature_info.module_name()):
        assert len(twins.model.get_submodule(module)) == (2, 2, 10, 4)[place]


def test_only_large_swin_drops_paths():
    with torch.device("meta"):
        large, micro = timm.create_model("swin_tiny_cifar"), timm.create_model("micro_swin")
    assert large.layers[-1].blocks[-1].drop_path1.drop_prob == pytest.approx(0.1)
    assert isinstance(micro.layers[-1].blocks[-1].drop_path1, torch.nn.Identity)


@pytest.mark.parametrize("name", ["micro_vit", "micro_vit_gap"])
def test_weights_of_small_images_serve_larger_ones(name, tmp_path):
    """timm's filters stretch the positions; without them the sizes would clash."""
    small = timm.create_model(name)
    torch.save(small.state_dict(), tmp_path / "weights.pth")
    large = timm.create_model(
        name,
        pretrained=True,
        img_size=64,
        pretrained_cfg_overlay={"file": str(tmp_path / "weights.pth")},
    )
    assert large.pos_embed.shape[1] == small.pos_embed.shape[1] + 256 - 64
    torch.testing.assert_close(large.blocks[0].mlp.fc1.weight, small.blocks[0].mlp.fc1.weight)
    assert large(torch.rand(1, 3, 64, 64)).shape == (1, 10)
