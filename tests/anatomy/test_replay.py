"""Replay against the eager model: states, suffix runs, precisions, and a model left as it was."""

import copy

import pytest
import timm
import torch
from torch import nn

from retinoscope import replay
from retinoscope.core.errors import NotResidual, UnknownUnit, WrongInput
from retinoscope.models.order_one import draw_at_order_one
from sampling import PROOF

SMALL = ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"]
LARGER = pytest.param("edgenext_xx_small", marks=PROOF)
SIZE = {"edgenext_xx_small": 64}
SWIN = {"img_size": (64, 96), "window_size": 4, "depths": (1, 2), "num_heads": (3, 6)}


def batch(model, size=160, images=3, **kind):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(images, 3, size, size, generator=generator, dtype=torch.float64).to(**kind)


@pytest.mark.parametrize("name", [*SMALL, LARGER])
def test_replays_the_model_bit_by_bit_at_any_batch_size(name, replayed):
    size = SIZE.get(name, 160)
    model, ours = replayed(name, size)
    for images in (1, 2, 5):
        x = batch(model, size, images, dtype=torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("test_resnet", "test_vit", "test_convnext")),
        ("test_resnet", torch.bfloat16),
        ("test_vit", torch.float64),
        *(
            pytest.param(name, dtype, marks=PROOF)
            for name, dtype in (
                ("test_resnet", torch.float64),
                ("test_vit", torch.bfloat16),
                ("test_convnext", torch.bfloat16),
                ("test_convnext", torch.float64),
            )
        ),
    ],
)
def test_precisions(name, dtype, order_one, replayed):
    if dtype == torch.float32:
        model, ours = replayed(name, 160)
        x = batch(model, dtype=dtype)
    else:
        model = order_one(name).to(dtype)
        x = batch(model, dtype=dtype)
        ours = replay(model, x)
    with torch.no_grad():
        found = ours(x)
        states = ours.states(x)
        torch.testing.assert_close(found, model(x), rtol=0, atol=0)
    assert {state.raw.dtype for state in states.values()} == {dtype}


def test_states_are_what_hooks_see(order_one):
    """The naive twin: module hooks, placed by someone who knows the architecture."""
    model = order_one("test_resnet")
    x = batch(model, dtype=torch.float32)
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _m, _i, out, name=name: seen.__setitem__(name, out.clone())
        )
    ours = replay(model, 160)
    with torch.no_grad():
        model(x)
        states = ours.states(x)
    assert seen.keys() > {"layer1.0", "maxpool"}
    for unit in ("layer1.0", "layer2.0", "layer3.0", "layer4.0"):
        torch.testing.assert_close(states[unit].maps, seen[unit], rtol=0, atol=0)
    torch.testing.assert_close(states["fc"].raw, seen[""], rtol=0, atol=0)


def test_states_of_a_vit_are_tokens_as_maps_and_prefix(replayed):
    model, ours = replayed("test_vit", 160)
    x = batch(model, dtype=torch.float32)
    seen = []
    hooks = [
        block.register_forward_hook(lambda _m, _i, out: seen.append(out)) for block in model.blocks
    ]
    with torch.no_grad():
        model(x)
        states = ours.states(x)
    for hook in hooks:
        hook.remove()
    mlps = [state for state in states.values() if state.unit.kind == "mlp"]
    assert len(mlps) == len(seen) == 6
    for state, tokens in zip(mlps, seen, strict=True):
        expected = tokens[:, 1:].transpose(1, 2).unflatten(2, (10, 10))
        torch.testing.assert_close(state.maps, expected, rtol=0, atol=0)
        torch.testing.assert_close(state.prefix, tokens[:, :1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "height", "width", "options"),
    [
        ("test_resnet", 64, 96, {}),
        ("test_vit", 64, 96, {"img_size": (64, 96)}),
        ("swin_tiny_patch4_window7_224", 64, 96, SWIN),
        pytest.param("mobilevit_xxs", 128, 192, {}, marks=PROOF),
    ],
)  # fmt: skip
def test_rectangular_images(name, height, width, options, replayed):
    model, ours = replayed(name, (height, width), **options)
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=0, atol=0)
        for state in ours.states(x, inner=True).values():
            grid = state.unit.grid
            if grid is None:
                continue
            assert state.maps.shape == (2, state.unit.channels, grid.height, grid.width)
            assert grid.height * 3 == grid.width * 2
            again = state.with_maps(state.maps)
            torch.testing.assert_close(again.raw, state.raw, rtol=0, atol=0)


def test_stem_grid_follows_the_image(replayed):
    """Brightening one patch of the image changes the patch embedding exactly there."""
    _, ours = replayed("test_vit", (64, 96), img_size=(64, 96))
    x = torch.zeros(1, 3, 64, 96)
    y = x.clone()
    y[:, :, 16:32, 48:64] = 1
    with torch.no_grad():
        stem = ours.anatomy.units[0].name
        change = (ours.states(y)[stem].maps - ours.states(x)[stem].maps).abs().sum((0, 1))
    assert change.nonzero().tolist() == [[1, 3]]


@pytest.mark.parametrize("name", [*SMALL, LARGER])
def test_resume_continues_from_any_unit(name, replayed):
    size = SIZE.get(name, 160)
    model, ours = replayed(name, size)
    x = batch(model, size, dtype=torch.float32)
    with torch.no_grad():
        states, logits = ours.states(x), ours(x)
        for unit in ours.anatomy:
            torch.testing.assert_close(ours.resume(unit, states[unit.name]), logits, rtol=0, atol=0)
            torch.testing.assert_close(
                ours.resume(unit.name, states[unit.name].raw), logits, rtol=0, atol=0
            )


def test_a_changed_state_changes_what_follows(replayed):
    _, ours = replayed("test_vit", 160)
    x = batch(None, dtype=torch.float32)
    with torch.no_grad():
        state = ours.states(x)["blocks.2.mlp"]
        flipped = ours.resume("blocks.2.mlp", state.with_maps(state.maps.flip(3)))
        assert not torch.allclose(flipped, ours(x))
        mean = state.with_maps(state.maps.mean((2, 3), keepdim=True).expand_as(state.maps))
        assert torch.equal(mean.prefix, state.prefix)


def test_gradients_reach_weights_and_image(order_one):
    model = order_one("test_vit").double()
    ours = replay(model, 160)
    x = batch(model).requires_grad_()
    ours(x).square().sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    image = x.grad.clone()
    model.zero_grad()
    x.grad = None
    model(x).square().sum().backward()
    torch.testing.assert_close(image, x.grad)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_follows_weights_loaded_later(order_one):
    model = order_one("test_resnet")
    ours = replay(model, 160)
    x = batch(model, dtype=torch.float32)
    model.load_state_dict(draw_at_order_one(timm.create_model("test_resnet"), seed=7).state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=0, atol=0)


class Grumpy(nn.Module):
    """Raises, or caches a tensor, while it runs."""

    def __init__(self, angry):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2)
        self.norm = nn.BatchNorm2d(4)
        self.angry = angry
        self.cache = {}

    def forward(self, x):
        x = self.norm(self.conv(x))
        self.cache["last"] = x
        self.latest = x
        if self.angry and x.sum() > 0:
            return x.mean((2, 3))
        return x.mean((2, 3)) * 2


@pytest.mark.parametrize("angry", [False, True])
def test_the_model_is_left_as_it_was(angry):
    model = Grumpy(angry).train()
    model.conv.eval()  # a frozen part of a model in training
    calls = []
    handle = model.norm.register_forward_hook(lambda *_: calls.append(1))
    state = copy.deepcopy(model.state_dict())
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    try:
        replay(model, 32)
    except Exception:
        assert angry
    else:
        assert not angry
    assert (model.training, model.conv.training, model.norm.training) == (True, False, True)
    assert calls == []
    assert list(model.norm._forward_hooks) == [handle.id]
    assert model.cache == {}
    assert not hasattr(model, "latest")
    for name, module in model.named_modules():
        assert dict(vars(module)) == attributes[name]
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])
    model(torch.randn(2, 3, 32, 32))
    assert calls == [1]


def test_weight_norm_computes_weights_so_it_stays():
    model = nn.Sequential(nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.Flatten(), nn.LazyLinear(5))
    x = torch.randn(2, 3, 8, 8)
    model(x)
    with torch.no_grad():
        model[0].weight_g.mul_(3)
        torch.testing.assert_close(replay(model, 8)(x), model(x), rtol=0, atol=0)


def test_shared_constants_are_computed_once(order_one):
    """Rotary positions of EVA are used by every block."""
    model = order_one("eva02_tiny_patch14_224", img_size=56, depth=2)
    ours = replay(model, 56)
    x = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=0, atol=0)


def test_what_cannot_be_done_is_said(order_one):
    ours = replay(order_one("test_resnet"), 160, name="toy")
    with pytest.raises(WrongInput, match="was read for images of 3×160×160; got 3×96×96"):
        ours(torch.zeros(1, 3, 96, 96))
    with pytest.raises(
        NotResidual, match=r"'fc' of toy is not residual.*can be removed: layer1\.0"
    ):
        ours.without("fc")
    with pytest.raises(UnknownUnit, match=r"toy has no unit 'layer9'"):
        ours.without("layer9")
    with pytest.raises(
        WrongInput, match=r"has the shape \(1, 32, 40, 40\) for one image; got \(2, 3"
    ):
        ours.resume("layer1.0", torch.zeros(2, 3))
    with pytest.raises(WrongInput, match="'fc' has no grid"):
        _ = ours.states(torch.zeros(1, 3, 160, 160))["fc"].maps
