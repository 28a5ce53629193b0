"""Networks that once went wrong, each with what it must be."""

from dataclasses import replace
from functools import lru_cache

import pytest
import timm
import torch
import torchvision
from timm.models.byoanet import model_cfgs
from timm.models.byobnet import ByobNet
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn import functional as F

from retinoscope import dissect, replay
from retinoscope.core.errors import NotABackbone, NotExportable, WrongInput
from sampling import PROOF


class Net(nn.Module):
    """A stem, whatever ``body`` does, and a head."""

    def __init__(self, body, width=16):
        super().__init__()
        self.stem, self.fc = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 10)
        self.conv, self.other = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.linear, self.qkv = nn.Linear(width, width), nn.Linear(width, 3 * width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.body = body

    def forward(self, x):
        x = self.body(self, self.stem(x))
        return self.fc(x.mean((2, 3)) if x.ndim == 4 else x.mean(1))


def block(net, x):
    return x + net.conv(x).relu()


def same(model, size=32, images=(1, 2, 5)):
    ours = replay(model.eval(), size)
    for count in images:
        x = torch.randn(count, 3, size, size)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x), rtol=0, atol=0)
            for state in ours.walk(x):
                torch.testing.assert_close(ours.resume(state.unit, state), ours(x), rtol=0, atol=0)
    return ours


@lru_cache
def ramp(size):
    return torch.linspace(0, 1, size)


def test_caches_outside_the_model_hold_real_tensors_afterwards():
    ramp.cache_clear()
    model = Net(lambda net, x: block(net, x + ramp(8))).eval()
    dissect(model, 32)
    assert not isinstance(ramp(8), FakeTensor)
    assert not isinstance(model(torch.zeros(1, 3, 32, 32)), FakeTensor)


class Keeping(Net):
    """Keeps what it made from its weights in a first run in eval mode, as LeViT does."""

    def __init__(self):
        super().__init__(block)
        self.kept = {}

    def train(self, mode=True):
        if mode:
            self.kept = {}
        return super().train(mode)

    def forward(self, x):
        if "gain" not in self.kept:
            self.kept["gain"] = self.token.exp().view(1, -1, 1, 1)
        return self.fc((block(self, self.stem(x)) * self.kept["gain"]).mean((2, 3)))


def test_what_a_model_cached_from_its_weights_is_not_taken_for_a_constant():
    fresh, used = Keeping().eval(), Keeping().eval()
    with torch.no_grad():
        used(torch.zeros(1, 3, 32, 32))
    kept = dict(used.kept)
    assert kept
    assert dissect(used, 32) == dissect(fresh, 32)
    assert used.kept == kept
    assert not fresh.kept


@PROOF
def test_what_levit_cached_from_its_weights_is_not_taken_for_a_constant():
    """LeViT keeps its attention biases after a first run in eval mode."""
    fresh, used = (timm.create_model("levit_128s").eval() for _ in range(2))
    with torch.no_grad():
        used(torch.zeros(1, 3, 224, 224))
    kept = {
        name: dict(m.attention_bias_cache)
        for name, m in used.named_modules()
        if hasattr(m, "attention_bias_cache")
    }
    assert any(kept.values())
    assert dissect(used, 224) == dissect(fresh, 224)
    for name, cache in kept.items():
        assert used.get_submodule(name).attention_bias_cache == cache


def test_buffers_that_forward_writes_to_are_restored_also_after_an_error():
    class Counting(Net):
        def __init__(self, angry):
            super().__init__(block)
            self.register_buffer("runs", torch.zeros(()))
            self.angry = angry

        def forward(self, x):
            self.runs += 1
            if self.angry and x.sum() > 5:
                return super().forward(-x)
            return super().forward(x)

    for angry in (False, True):
        model = Counting(angry)
        try:
            dissect(model, 32)
        except NotExportable:
            assert angry
        assert model.runs == 0


def one_by_one(net, x):
    return torch.cat([block(net, image[None]) for image in x])


def by_length(net, x):
    return block(net, x) + torch.ones(len(x), 1, 1, 1)


def by_number(net, x):
    return block(net, x) * (1 if x.shape[0] > 3 else 2)


@pytest.mark.parametrize("body", [one_by_one, by_length, by_number])
def test_code_that_fixes_the_number_of_images_is_taken_apart_anew_for_another(body):
    model = Net(body).eval()
    ours = same(model, images=(1, 2, 5))
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        assert len(ours.states(x)) == len(ours.anatomy)
        for unit, logits in ours.lesions(x):
            torch.testing.assert_close(ours.without(unit)(x), logits, rtol=0, atol=0)
            assert not torch.equal(logits, model(x))


def into_an_out_argument(net, x):
    z = torch.empty_like(x)
    torch.mul(x, 2, out=z)
    x = x.add(0)
    x.add_(z)
    return x + net.conv(z)


def with_gradients_on(net, x):
    with torch.set_grad_enabled(True):
        return block(net, x)


def moved(net, x):
    return block(net, x.swapaxes(1, 2).swapaxes(1, 2).moveaxis(1, 3).movedim(3, 1))


def stacked(net, x):
    return block(net, torch.hstack([x, x])[:, ::2])


def upsampled(net, x):
    return block(net, F.interpolate(x, scale_factor=2, mode="nearest-exact"))


def sorted_rows(net, x):
    return block(net, x.sort(2).values)


def clipped(net, x):
    return block(net, x.clip(-1, 1).atan())


@pytest.mark.parametrize(
    ("body", "sketch"),
    [
        (into_an_out_argument, "C"),
        (with_gradients_on, "C"),
        (moved, "C"),
        (stacked, "C"),
        (clipped, "C"),
        (upsampled, "C"),
        (sorted_rows, "?C"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_bodies_behind_unusual_operations(body, sketch):
    ours = same(Net(body))
    assert ours.anatomy.sketch.replace("|", "") == sketch
    assert ours.anatomy.units[-1].kind == "head"


def tokens(x):
    return x.flatten(2).transpose(1, 2)


def attend(net, x):
    q, k, v = net.qkv(x).chunk(3, -1)
    return net.linear((q @ k.transpose(-2, -1)).softmax(-1) @ v)


def test_a_class_token_in_every_window():
    def body(net, x):
        n, c = x.shape[:2]
        x = x.view(n, c, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(n * 4, 16, c)
        x = torch.cat([net.token.expand(n * 4, -1, -1), x], 1)
        x = x + attend(net, x)
        x = x[:, 1:].reshape(n, 2, 2, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, 8, 8)
        return block(net, x)

    ours = same(Net(body))
    stem, attention = ours.anatomy.units[:2]
    assert (str(stem.grid), str(attention.grid)) == ("8×8+4", "8×8")
    x = torch.randn(3, 3, 32, 32)
    model_stem = ours.states(x)[stem.name]
    assert model_stem.prefix.shape == (3, 4, 16)
    torch.testing.assert_close(model_stem.with_maps(model_stem.maps).raw, model_stem.raw)


def test_sequence_first_tokens():
    def body(net, x):
        x = torch.cat([net.token.expand(3, x.shape[0], -1), tokens(x).transpose(0, 1)])
        x = x + net.linear(x).relu()
        return x.transpose(0, 1)

    ours = same(Net(body))
    state = ours.states(torch.randn(2, 3, 32, 32))[ours.anatomy.units[1].name]
    assert str(state.unit.grid) == "8×8+3"
    assert state.prefix.shape == (2, 3, 16)
    assert state.maps.shape == (2, 16, 8, 8)


def test_tokens_in_another_order_have_no_grid():
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def body(net, x):
        x = tokens(x)[:, order]
        return x + attend(net, x)

    ours = same(Net(body))
    assert ours.anatomy.sketch == "A"
    assert ours.anatomy.where(kind="attention").units[0].grid is None
    with pytest.raises(WrongInput, match="has no grid"):
        _ = list(ours.walk(torch.zeros(1, 3, 32, 32)))[1].maps


def test_units_behind_pruned_tokens_are_still_units():
    def body(net, x):
        x = tokens(x)
        x = x + attend(net, x)
        x = x[:, ::2] * 1
        return x + attend(net, x)

    assert same(Net(body)).anatomy.sketch == "AA"


def test_plain_networks_with_few_classes_keep_their_body():
    with torch.device("meta"):
        vgg = dissect(torchvision.models.vgg11(num_classes=10), 224)
    assert vgg.sketch == "P↓C|P↓CC|P↓CC|P↓CC|P↓P"
    assert vgg.units[-1].kind == "head"
    maps = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    maps += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    table = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    lenet = nn.Sequential(*maps, nn.Flatten(), *table)
    assert dissect(lenet, 32).sketch == "P↓|C↓|P↓"


def test_padding_opens_the_unit_that_needs_it():
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()]
    for _ in range(2):
        layers += [nn.ZeroPad2d(1), nn.Conv2d(8, 8, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    anatomy = dissect(model, 32)
    assert anatomy.sketch == "CC"
    assert [str(unit.grid) for unit in anatomy] == ["32×32", "32×32", "32×32", "None"]


def test_patches_by_unfold_keep_their_grid():
    def body(net, x):
        n, c = x.shape[:2]
        x = F.unfold(x, 2, stride=2).view(n, c, 4, 16).permute(0, 2, 3, 1)
        x = x + attend(net, x)
        x = F.fold(x.permute(0, 3, 1, 2).reshape(n, c * 4, 16), (8, 8), 2, stride=2)
        return block(net, x)

    ours = same(Net(body))
    assert [str(unit.grid) for unit in ours.anatomy][:3] == ["8×8"] * 3
    x = torch.zeros(1, 3, 32, 32)
    y = x.clone()
    y[:, :, 4:8, 20:24] = 1
    stem = ours.anatomy.units[0].name
    change = (ours.states(y)[stem].maps - ours.states(x)[stem].maps).abs().sum((0, 1))
    assert change.nonzero().tolist() == [[1, 5]]


def test_einsum_with_an_ellipsis_and_log_softmax_are_attention():
    def spelt(net, x):
        x = tokens(x)
        q, k, v = net.qkv(x).chunk(3, -1)
        weights = torch.einsum("...id,...jd->...ij", q, k).softmax(-1)
        return x + torch.einsum("...ij,...jd->...id", weights, v)

    def logarithmic(net, x):
        x = tokens(x)
        q, k, v = net.qkv(x).chunk(3, -1)
        return x + (q @ k.mT).log_softmax(-1).exp() @ v

    for body in (spelt, logarithmic):
        assert same(Net(body)).anatomy.sketch == "A"


def test_modules_where_surgery_would_differ_from_the_lesion_are_not_named():
    parallel = dissect(Net(lambda net, x: x + net.conv(x) + net.other(x)), 32)
    assert parallel.units[1].module is None
    twice = dissect(Net(lambda net, x: block(net, block(net, x))), 32)
    assert [unit.module for unit in twice.where(kind="conv")] == [None, None]


@PROOF
def test_torchvision_maxvit_comes_apart():
    anatomy = dissect(torchvision.models.maxvit_t(), 224)
    stages = ["C↓AMAMCAMAM"] * 2 + ["C↓AMAM" + "CAMAM" * 4] + ["C↓AMAMCAMAM"]
    assert anatomy.sketch == "|".join(stages)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (torch.zeros(0, 3, 8, 8), "got a tensor of shape"),
        ((3, 32, 32), r"got \(3, 32, 32\)"),
        (32.0, r"got 32\.0"),
        ("32", "got '32'"),
        (None, "got None"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.float64), "float32, but the images are torch.float64"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "the images are torch.uint8"),
    ],
)  # fmt: skip
def test_examples_that_are_none(example, says):
    with pytest.raises(WrongInput, match=says):
        dissect(nn.Conv2d(3, 4, 3), example)


def test_models_that_are_none():
    with pytest.raises(NotABackbone, match=r"The model must be an nn\.Module; got the class Net"):
        dissect(Net, 32)
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(NotABackbone, match=r"pass the nn\.Module it was made from"):
        dissect(scripted, 32)


def test_sizes_of_other_integer_types():
    np = pytest.importorskip("numpy")
    assert dissect(Net(block), np.int64(32)).image == (3, 32, 32)


def test_one_channel_by_size():
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, img_size=32, depth=1)
    assert dissect(model, 32).image == (1, 32, 32)


def test_images_and_maps_of_the_wrong_kind(replayed):
    _, ours = replayed("test_vit", 160)
    with pytest.raises(
        WrongInput, match=r"was read in torch\.float32; got images in torch\.float64"
    ):
        ours(torch.zeros(1, 3, 160, 160, dtype=torch.float64))
    state = ours.states(torch.zeros(1, 3, 160, 160))["blocks.0.mlp"]
    with pytest.raises(WrongInput, match=r"needs the shape \(1, 64, 10, 10\); got \(1, 64, 5, 5\)"):
        state.with_maps(torch.zeros(1, 64, 5, 5))


def test_a_single_window_keeps_its_grid():
    """Halo attention over one block: overlapping windows of which there is only one."""
    layout = model_cfgs["halonet_h1"]
    blocks = [replace(layout.blocks[stage], d=1 + stage // 3) for stage in (0, 3)]
    anatomy = dissect(ByobNet(replace(layout, blocks=tuple(blocks))), 64)
    assert anatomy.sketch == "A|A↓A"
    assert [str(unit.grid) for unit in anatomy][-3:] == ["8×8", "8×8", "None"]


@PROOF
def test_single_windows_of_halonet_keep_their_grids():
    anatomy = dissect(timm.create_model("halonet_h1"), 256)
    assert anatomy.sketch == "AAA|A↓AA|A↓" + "A" * 9 + "|A↓AA"
    assert [str(unit.grid) for unit in anatomy][-4:] == ["8×8", "8×8", "8×8", "None"]


def test_a_transposed_matrix_keeps_its_grid():
    """``x.mT`` is an operation of its own."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 4, 4)
            self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            x = self.stem(x).flatten(2).mT
            x = x + self.mlp(x)
            return self.head(x.mean(1))

    (unit,) = dissect(Turned(), 16).where(kind="mlp")
    assert unit.grid.resolution == (4, 4)
