"""What is seen inside a unit is what the eager model holds there, whoever wrote the attention."""

import pytest
import timm
import torch
from torch import fx, nn
from torch.nn import functional

from retinoscope.anatomy.attentions import Attention, measured_weights
from retinoscope.anatomy.replay import replay
from retinoscope.models.order_one import draw_at_order_one

ALL = frozenset({"queries", "keys", "values", "weights", "branch"})


class Einsum(nn.Module):
    """Attention by einsum in the order (batch, position, head, channel)."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.5).softmax(-1)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class Written(nn.Module):
    """A transformer of one's own: patches, one attention of a kind, an MLP, a head."""

    def __init__(self, attention, width=12):
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.norm, self.attention = nn.LayerNorm(width), attention
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 24), nn.GELU(),
                                 nn.Linear(24, width))  # fmt: skip
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm(x))
        x = x + self.mlp(x)
        return self.head(x.mean(1))


class Torch(nn.Module):
    def __init__(self, width=12, heads=3):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=True, average_attn_weights=False)[0]


def seen(model, size, images):
    """The taps of every unit that has any, and the states with and without them."""
    ours = replay(model, size)
    with torch.no_grad():
        tapped = list(ours.walk(images, ALL))
        plain = list(ours.walk(images))
    for one, other in zip(tapped, plain, strict=True):
        assert torch.equal(one.raw, other.raw)
        assert not other.taps
    return {state.unit.name: state for state in tapped if state.taps}


def holds_together(taps, mask=None):
    """Values mixed by the weights, and the weights made by queries and keys, as softmax says."""
    (weights,), (values,) = taps["weights"], taps["values"]
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert weights.shape[:3] == values.shape[:3]
    assert weights.shape[-1] == values.shape[-2]


@pytest.mark.parametrize("fused", [True, False])
def test_a_vits_taps_are_those_of_its_modules(fused):
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=2
    )
    model = draw_at_order_one(model).eval()
    for block in model.blocks:
        block.attn.fused_attn = fused
    images = torch.rand(5, 3, 16, 16)
    held = {}
    for name in ("blocks.0.attn", "blocks.1.attn"):
        model.get_submodule(name).register_forward_hook(
            lambda module, given, out, name=name: held.update({name: (given[0], out)})
        )
    with torch.no_grad():
        model(images)
    taps = {n: s for n, s in seen(model, 16, images).items() if "weights" in s.taps}
    assert list(taps) == list(held)
    for name, state in taps.items():
        module, (x, out) = model.get_submodule(name), held[name]
        q, k, v = module.qkv(x).reshape(5, 17, 3, 3, 4).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * 4**-0.5).softmax(-1)
        torch.testing.assert_close(state.taps["weights"][0][:, 0], weights)
        torch.testing.assert_close(state.taps["values"][0][:, 0], v)
        torch.testing.assert_close(state.taps["keys"][0][:, 0], k)
        scale = 1 if fused else 4**-0.5  # unfused, the queries are scaled before the product
        torch.testing.assert_close(state.taps["queries"][0][:, 0], q * scale)
        branch = out[:, 1:].mT.unflatten(2, (4, 4))
        torch.testing.assert_close(state.taps["branch"][0], branch)
        assert branch.abs().mean() > 0.1


def test_windows_are_unfolded_from_the_batch():
    """Shifted windows of Swin, with bias and mask: as its own module computes them."""
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=12,
        depths=(2,), num_heads=(3,),
    )  # fmt: skip
    model = draw_at_order_one(model).eval()
    for block in model.layers[0].blocks:
        block.attn.fused_attn = False
    held = []
    for block in model.layers[0].blocks:
        block.attn.softmax.register_forward_hook(lambda module, given, out: held.append(out))
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        model(images)
    taps = [s.taps for s in seen(model, 32, images).values() if "weights" in s.taps]
    assert len(taps) == 2
    for one, weights in zip(taps, held, strict=True):
        expected = weights.unflatten(0, (3, 16))
        torch.testing.assert_close(one["weights"][0], expected)
        holds_together(one)
    assert (taps[1]["weights"][0] == 0).any(), "the mask of the shifted windows hides some"


@pytest.mark.parametrize("kind", [Einsum, Torch])
def test_attention_of_ones_own(kind):
    torch.manual_seed(0)
    model = draw_at_order_one(Written(kind())).eval()
    images = torch.rand(4, 3, 16, 16)
    (taps,) = [s.taps for s in seen(model, 16, images).values() if "weights" in s.taps]
    with torch.no_grad():
        x = model.norm(model.embed(images).flatten(2).transpose(1, 2))
        if kind is Torch:
            inner = model.attention.inner
            _, expected = inner(x, x, x, need_weights=True, average_attn_weights=False)
        else:
            q, k, _ = model.attention.qkv(x).chunk(3, -1)
            q, k = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in (q, k))
            expected = (q @ k.mT * 0.5).softmax(-1)
    torch.testing.assert_close(taps["weights"][0][:, 0], expected)
    holds_together(taps)


def test_a_branch_is_what_is_added(order_one):
    """Of a post-activation block, before the addition and the ReLU behind it."""
    model = order_one("resnet18", layers=(2, 1, 1, 1), channels=(8, 8, 8, 8))
    images = torch.rand(2, 3, 32, 32)
    before = {s.unit.name: s.raw for s in replay(model, 32).walk(images)}
    state = seen(model, 32, images)["layer1.1"]
    with torch.no_grad():
        expected = functional.relu(before["layer1.0"] + state.taps["branch"][0])
    torch.testing.assert_close(state.raw, expected)
    assert state.taps["branch"][0].abs().mean() > 0.01
    assert set(state.taps) == {"branch"}


def test_only_what_was_asked_for_is_kept(order_one):
    model = order_one("resnet18", layers=(2, 1, 1, 1), channels=(8, 8, 8, 8))
    states = list(replay(model, 32).walk(torch.rand(2, 3, 32, 32), {"weights"}))
    assert not any(state.taps for state in states)


@pytest.mark.parametrize("how", ["plain", "scale", "causal", "boolean", "added", "grouped", "half"])
def test_weights_of_a_fused_operation_are_those_that_it_mixes_with(how):
    """Mixing the rows of the identity matrix gives them as well, though slowly."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2 if how == "grouped" else 4, 7, 8)
    if how == "half":
        query, key = query.bfloat16(), key.bfloat16()
    masks = {"boolean": torch.rand(6, 7) < 0.7, "added": torch.randn(4, 6, 7)}
    options = {"scale": 0.9 if how == "scale" else None, "is_causal": how == "causal",
               "enable_gqa": how == "grouped"}  # fmt: skip
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in ("query", "key", "value")]
    mask = graph.placeholder("mask") if how in masks else None
    fused = torch.ops.aten.scaled_dot_product_attention.default
    node = graph.call_function(fused, (*nodes, mask), options)
    known = dict(zip(nodes, (query, key), strict=False)) | ({mask: masks[how]} if mask else {})
    rows = torch.eye(7).to(key).expand(*key.shape[:-1], -1)
    expected = functional.scaled_dot_product_attention(query, key, rows, masks.get(how), **options)
    found = measured_weights(Attention(node, nodes[2], None, (node,)), known)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.to(expected), expected)
