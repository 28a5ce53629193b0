import pytest
import timm
import torch
from safetensors.torch import save_file

from models.survival import count, images, made, survives
from retinoscope import dissect
from retinoscope.models.families import convolutional_vit
from sampling import PROOF, sampled

KERNELS = {"conv3": 3, "conv5": 5, "convglobal": None}
MICRO = [f"micro_vit_{kernel}" for kernel in KERNELS]
TINY = [f"vit_tiny_patch4_{kernel}_cifar" for kernel in KERNELS]


def test_these_are_all():
    assert {*MICRO, *TINY} == set(convolutional_vit.default_cfgs)


@pytest.mark.parametrize(("names", "parameters"), [(MICRO, 146_650), (TINY, 5_372_836)])
def test_parameters_do_not_depend_on_the_window(names, parameters):
    """Those of a ViT of this size without a class token (Park & Kim, 2022: 5.4 M)."""
    with torch.device("meta"):
        models = [timm.create_model(name) for name in names]
    assert {count(model) for model in models} == {parameters}
    width = models[0].embed_dim
    assert count(models[0].blocks[0].attn) == 4 * width**2 + width
    assert count(models[0].blocks[0].mlp) == 8 * width**2 + 5 * width
    for model, kernel in zip(models, KERNELS.values(), strict=True):
        assert {block.attn.kernel for block in model.blocks} == {kernel}
        assert {block.attn.heads for block in model.blocks} == {3}


@pytest.mark.parametrize(
    ("name", "options", "sketch"),
    [
        *((name, {}, "AM" * 5) for name in MICRO),
        (MICRO[0], {"outside": "zero"}, "AM" * 5),
        pytest.param(TINY[1], {}, "AM" * 12, marks=PROOF),
    ],
)
def test_anatomy_is_that_of_vit(name, options, sketch):
    model = made(name, **options)
    anatomy = dissect(model, 32)
    assert anatomy.sketch == sketch
    assert anatomy.parameters == count(model)
    assert {str(unit.grid) for unit in anatomy.where(residual=True)} == {"8×8"}
    assert [unit.module for unit in anatomy.where(kind="attention")] == [
        f"blocks.{index}.attn" for index in range(len(model.blocks))
    ]


@pytest.mark.parametrize("name", sampled([*MICRO, *TINY], MICRO[0], MICRO[2]))
def test_forward_backward_export_bfloat16_and_file(name, tmp_path):
    small = {} if name in MICRO else {"depth": 2}  # twelve blocks show nothing that two do not
    logits = survives(made(name, **small), timm.create_model(name, **small), images(), tmp_path)
    assert logits.shape == (2, 10 if name in MICRO else 100)


@pytest.mark.parametrize(("name", "reach"), [(MICRO[0], 2), (MICRO[1], 4), (MICRO[2], 7)])
def test_a_patch_is_seen_as_far_as_two_windows_reach(name, reach):
    model = made(name, depth=2)
    x = images().requires_grad_()
    model.forward_features(x)[:, :, 0, 0].sum().backward()
    seen = x.grad.abs().amax((0, 1)).reshape(8, 4, 8, 4).amax((1, 3)) > 0
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[: reach + 1, : reach + 1] = True
    assert torch.equal(seen, expected)


def test_a_block_written_out():
    """Pre-norm, over channels; GELU between 1×1 convolutions; mean, norm, linear behind."""
    model, x = made(MICRO[0], depth=1).double(), images().double()
    block = model.blocks[0]

    def norm(maps, layer):
        centred = maps - maps.mean(1, keepdim=True)
        scaled = centred / (maps.var(1, unbiased=False, keepdim=True) + layer.eps).sqrt()
        return scaled * layer.weight[:, None, None] + layer.bias[:, None, None]

    def mix(maps, layer):
        matrix = layer.weight.flatten(1)
        return torch.einsum("oc,nchw->nohw", matrix, maps) + layer.bias[:, None, None]

    state = model.patch_embed(x) + model.pos_embed
    state = state + block.attn(norm(state, block.norm1))
    hidden = torch.nn.functional.gelu(mix(norm(state, block.norm2), block.mlp.fc1))
    state = state + mix(hidden, block.mlp.fc2)
    pooled = norm(state.mean((2, 3), keepdim=True), model.head.norm)[..., 0, 0]
    logits = pooled @ model.head.fc.weight.mT + model.head.fc.bias
    torch.testing.assert_close(model(x), logits, rtol=0, atol=1e-10)  # float64


@pytest.mark.parametrize("name", MICRO)
def test_speaks_timm(name):
    features = timm.create_model(name, features_only=True)
    assert [tuple(f.shape) for f in features(images())] == [(2, 48, 8, 8)] * 3
    assert features.feature_info.channels() == [48] * 3
    assert features.feature_info.reduction() == [4] * 3
    model = timm.create_model(name, num_classes=7, in_chans=1, drop_rate=0.1)
    assert model.get_classifier().out_features == model.num_classes == 7
    assert model(images(channels=1)).shape == (2, 7)
    model.reset_classifier(3)
    assert model(images(channels=1)).shape == (2, 3)
    bare = timm.create_model(name, num_classes=0)
    assert bare(images()).shape == (2, 48)
    bare.reset_classifier(0, "")
    assert bare(images()).shape == (2, 48, 8, 8)
    assert model.no_weight_decay() <= {parameter for parameter, _ in model.named_parameters()}


def test_intermediates():
    model, x = made(MICRO[0]), images()
    last, found = model.forward_intermediates(x)
    assert len(found) == 5
    torch.testing.assert_close(last, model.forward_features(x))
    torch.testing.assert_close(found[-1], last)
    torch.testing.assert_close(model.forward_head(last), model(x))
    early = model.forward_intermediates(x, [0, -2], stop_early=True, intermediates_only=True)
    torch.testing.assert_close(early, [found[0], found[3]])
    (normed,) = model.forward_intermediates(x, 1, norm=True, intermediates_only=True)
    torch.testing.assert_close(normed, model.head.norm(last))
    first = timm.create_model(MICRO[0], features_only=True, out_indices=(0, 3)).eval()
    state = {k: v for k, v in model.state_dict().items() if not k.startswith(("head", "blocks.4"))}
    first.model.load_state_dict(state)  # strictly: what features do not need is gone
    torch.testing.assert_close(first(x), [found[0], found[3]])
    with pytest.raises(ValueError, match="output_fmt='NCHW'; got 'NLC'"):
        model.forward_intermediates(x, output_fmt="NLC")


def test_gradient_checkpoints_change_nothing():
    model, x = made(MICRO[1]), images()
    model(x).sum().backward()
    expected = model.pos_embed.grad.clone()
    model.zero_grad()
    model.set_grad_checkpointing()
    model(x).sum().backward()
    torch.testing.assert_close(model.pos_embed.grad, expected)


def test_dropout_and_stochastic_depth_grow_where_asked():
    model = timm.create_model(MICRO[0], drop_path_rate=0.4, attn_drop_rate=0.1, proj_drop_rate=0.2)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert (model.blocks[0].attn.attn_drop.p, model.blocks[0].attn.proj_drop.p) == (0.1, 0.2)
    assert model.blocks[0].mlp.drop1.p == 0.2
    x = images()
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_built_for_another_size():
    model = timm.create_model(MICRO[0], img_size=(32, 48))
    assert model.forward_features(images(32, 48)).shape == (2, 48, 8, 12)
    with pytest.raises(ValueError, match=r"built for images of 32×48.*these are 32×32\. Build it"):
        model(images())
    with pytest.raises(ValueError, match=r"30×30 cannot be cut into patches of 4×4"):
        timm.create_model(MICRO[0], img_size=30)


def test_positions_are_interpolated_when_built_for_another_size(tmp_path):
    small = made(MICRO[0])
    with torch.no_grad():
        across = torch.linspace(-1, 1, 8).expand(8, 8)
        small.pos_embed[0, 0] = across
    file = tmp_path / "model.safetensors"
    save_file(small.state_dict(), file)
    options = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}}
    same = timm.create_model(MICRO[0], **options)
    assert torch.equal(same.pos_embed, small.pos_embed)
    large = timm.create_model(MICRO[0], img_size=64, **options)
    assert large.pos_embed.shape == (1, 48, 16, 16)
    row = large.pos_embed[0, 0, 8]
    assert row.diff().min() > 0
    assert row.mean().abs() < 1e-5
    torch.testing.assert_close(row[8] - row[7], torch.tensor(1 / 7), rtol=1e-3, atol=0)
    assert torch.equal(large.head.fc.weight, small.head.fc.weight)
    assert large(images(64, 64)).shape == (2, 10)
