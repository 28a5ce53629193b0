import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer

from models.survival import count, images, made, survives
from retinoscope import dissect
from retinoscope.layers.eigen_attention import EigenAttention
from retinoscope.models.families import eigen_vit
from sampling import sampled

MICRO = ["micro_vit_plus", "micro_vit_minus"]
TINY = [
    f"vit_{sign}_{form}tiny_patch2_cifar" for sign in ("plus", "minus") for form in ("", "authors_")
]
BASE = ["vit_plus_base_patch16_224", "vit_minus_base_patch16_224"]


def test_these_are_all():
    assert {*MICRO, *TINY, *BASE} == set(eigen_vit.default_cfgs)


@pytest.mark.parametrize(
    ("names", "parameters", "options"),
    [
        (MICRO, 135_226, {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 5}),
        (TINY, 4_960_804, {"img_size": 32, "patch_size": 2, "embed_dim": 192, "depth": 12}),
        (BASE, 79_462_120, {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12}),
    ],
)
def test_parameters_are_one_square_per_block_fewer_than_those_of_vit(names, parameters, options):
    """3d² + d per attention instead of 4d² + d, where neither has a bias of the maps."""
    with torch.device("meta"):
        models = [timm.create_model(name) for name in names]
        plain = VisionTransformer(
            num_heads=3, num_classes=models[0].num_classes, qkv_bias=False, **options
        )
    width, depth = options["embed_dim"], options["depth"]
    assert {count(model) for model in models} == {parameters}
    assert parameters == count(plain) - depth * width**2
    assert {count(block.attn) for model in models for block in model.blocks} == {
        3 * width**2 + width
    }
    assert not any(isinstance(m, Attention) for model in models for m in model.modules())


@pytest.mark.parametrize("name", [*MICRO, *TINY])
def test_eigenvalues_have_the_sign_of_the_name(name):
    model = made(name)
    factor, heads = (-1 if "minus" in name else 1), model.blocks[0].attn.num_heads
    assert heads == 3
    for block in model.blocks:
        values = block.attn.values
        assert values.form == ("authors" if "authors" in name else "symmetric")
        eigenvalues = factor * torch.linalg.eigvalsh(values.matrix().detach().double())
        assert eigenvalues.min() > -1e-5  # H is in float32
        assert eigenvalues.max() > 0.1


@pytest.mark.parametrize(
    ("name", "sketch"),
    sampled([(MICRO[0], "AM" * 5), (MICRO[1], "AM" * 5), (TINY[3], "AM" * 12)], *MICRO),
)
def test_anatomy_is_that_of_vit(name, sketch):
    model = made(name)
    anatomy = dissect(model, 32)
    assert anatomy.sketch == sketch
    assert anatomy.parameters == count(model)
    side = 8 if name in MICRO else 16
    assert {str(unit.grid) for unit in anatomy.where(kind="attention")} == {f"{side}×{side}+1"}
    assert [unit.module for unit in anatomy.where(kind="attention")] == [
        f"blocks.{index}.attn" for index in range(len(model.blocks))
    ]


@pytest.mark.parametrize("name", sampled([*MICRO, *TINY], *MICRO, TINY[3]))
def test_forward_backward_export_bfloat16_and_file(name, tmp_path):
    small = {} if name in MICRO else {"depth": 2}  # twelve blocks show nothing that two do not
    logits = survives(made(name, **small), timm.create_model(name, **small), images(), tmp_path)
    assert logits.shape == (2, 10 if name in MICRO else 100)


@pytest.mark.parametrize("name", MICRO)
def test_speaks_timm(name):
    features = timm.create_model(name, features_only=True)
    assert [tuple(f.shape) for f in features(images())] == [(2, 48, 8, 8)] * 3
    assert features.feature_info.channels() == [48] * 3
    assert features.feature_info.reduction() == [4] * 3
    two = timm.create_model(name, features_only=True, out_indices=(0, 4))
    assert len(two(images())) == 2
    model = timm.create_model(name, num_classes=7, in_chans=1, img_size=16)
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 7)
    model.reset_classifier(0)
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 48)
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)


def test_options_reach_the_attention():
    model = timm.create_model(
        MICRO[0], attn_drop_rate=0.1, proj_drop_rate=0.2, drop_path_rate=0.3, dtype=torch.float64
    )
    attention = model.blocks[-1].attn
    assert isinstance(attention, EigenAttention)
    assert (attention.attn_drop.p, attention.proj_drop.p) == (0.1, 0.2)
    assert model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.3)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_masks_and_gradient_checkpoints_as_in_timm():
    model, x = made(MICRO[1]), images()
    plain = model.forward_features(x)
    causal = model.forward_features(x, is_causal=True)
    assert (plain - causal).abs().max() > 1e-2
    model(x).sum().backward()
    expected = model.blocks[0].attn.values.theta.grad.clone()
    model.zero_grad()
    model.set_grad_checkpointing()
    model(x).sum().backward()
    torch.testing.assert_close(model.blocks[0].attn.values.theta.grad, expected)


def test_weights_can_be_drawn_again():
    """As timm does for a model made on the meta device."""
    model = timm.create_model(MICRO[1])
    before = model.blocks[0].attn.values.psi.clone()
    model.init_weights()
    after = model.blocks[0].attn.values.psi
    assert not torch.equal(before, after)
    assert after.max() <= 0


def test_positions_are_interpolated_when_built_for_another_size(tmp_path):
    small, file = made(MICRO[0]), tmp_path / "model.safetensors"
    save_file(small.state_dict(), file)
    options = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}}
    assert torch.equal(timm.create_model(MICRO[0], **options).eval()(images()), small(images()))
    large = timm.create_model(MICRO[0], img_size=64, **options)
    assert large.pos_embed.shape == (1, 1 + 16 * 16, 48)
    assert torch.equal(large.blocks[4].attn.values.theta, small.blocks[4].attn.values.theta)


@pytest.mark.parametrize("option", ["qkv_bias", "qk_norm", "scale_attn_norm"])
def test_refuses_what_the_attention_has_not(option):
    with pytest.raises(ValueError, match=rf"{option}: the attention of ViT⁺ and ViT⁻ has neither"):
        timm.create_model(MICRO[0], **{option: True})
