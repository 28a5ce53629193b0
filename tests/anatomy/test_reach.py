"""Where queries and keys are, and which pairs a mask hides, known from how a model is written."""

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional

from retinoscope.anatomy.replay import replay
from retinoscope.models.order_one import draw_at_order_one

WIDTH, HEADS = 12, 3


class Attention(nn.Module):
    """Attention with a mask, written in one of many ways; a huge learned bias is no mask."""

    def __init__(self, how, tokens):
        super().__init__()
        self.how, self.qkv = how, nn.Linear(WIDTH, 3 * WIDTH)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(3)
        self.register_buffer("hidden", hidden)
        self.register_buffer("low", torch.zeros(tokens, tokens).masked_fill(hidden, -100.0))
        self.bias = nn.Parameter(torch.zeros(HEADS, tokens, tokens))
        self.mixing = nn.Linear(HEADS, HEADS)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        fused = functional.scaled_dot_product_attention
        if self.how == "fused, boolean":
            return fused(q, k, v, ~self.hidden).transpose(1, 2).flatten(2)
        if self.how == "fused, bias and mask":
            return fused(q, k, v, self.bias + self.low).transpose(1, 2).flatten(2)
        if self.how == "fused, causal":
            return fused(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = q @ k.mT / 2 + self.bias
        if self.how == "added":
            logits = logits + self.low
        if self.how == "filled":
            logits = logits.masked_fill(self.hidden, -torch.inf)
        if self.how == "chosen":
            logits = torch.where(self.hidden, torch.finfo(logits.dtype).min, logits)
        weights = logits.softmax(-1)
        if self.how == "talking heads":
            weights = self.mixing(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return (weights @ v).transpose(1, 2).flatten(2)


class Coarse(nn.Module):
    """Keys from a map of half the resolution."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.smaller = nn.Conv2d(WIDTH, WIDTH, 2, 2)

    def forward(self, x):
        few = self.smaller(x.mT.unflatten(-1, (4, 6))).flatten(2).mT
        k, v = self.kv(few).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Dilated(nn.Module):
    """Each window contains every second row and column, as in MaxViT's grid attention."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        n = x.shape[0]
        apart = x.reshape(n, 2, 2, 3, 2, WIDTH).permute(0, 2, 4, 1, 3, 5).reshape(4 * n, 6, WIDTH)
        q, k, v = self.qkv(apart).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = y.reshape(n, 2, 2, 2, 3, WIDTH).permute(0, 3, 1, 4, 2, 5)
        return y.reshape(n, 24, WIDTH)


class Net(nn.Module):
    """Patches of 4 × 4 pixels on a grid of 4 × 6, one attention, a head that may attend too."""

    def __init__(self, attention, pooled=False):
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.attention, self.mlp = attention, nn.Linear(WIDTH, WIDTH)
        self.latent = nn.Parameter(torch.zeros(1, 2, WIDTH)) if pooled else None
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        x = x + self.attention(x)
        x = x + self.mlp(x).relu()
        if self.latent is not None:
            q, k = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (self.latent, x))
            q = q.expand(len(x), -1, -1, -1)
            x = functional.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))


def seen(model, height, width, taps=("softmax",), images=2):
    """The states with attention, by the names of their units."""
    torch.manual_seed(0)
    with torch.no_grad():
        states = list(
            replay(model, (height, width)).walk(torch.rand(images, 3, height, width), taps)
        )
    return {s.unit.name: s for s in states if s.reaches}


def of(attention, **options):
    torch.manual_seed(0)
    (state, *rest) = seen(draw_at_order_one(Net(attention, **options)).eval(), 16, 24).values()
    return state, rest


@pytest.mark.parametrize(
    "how", ["added", "filled", "chosen", "fused, boolean", "fused, bias and mask", "fused, causal"]
)
def test_masks_however_they_are_written(how):
    attention = Attention(how, 24)
    state, _ = of(attention)
    (reach,), (weights,) = state.reaches, state.taps["softmax"]
    later = torch.ones(24, 24, dtype=torch.bool).triu(1)
    expected = later if how == "fused, causal" else attention.hidden
    assert torch.equal(reach.hidden, expected.expand(1, HEADS, 24, 24))
    assert torch.equal(reach.choices, (~expected).sum(-1).expand(1, HEADS, 24))
    assert weights.masked_select(expected).max() < 1e-30
    assert weights.masked_select(~expected).min() > 0


def test_a_learned_bias_is_no_mask():
    attention = Attention("plain", 24)
    model = draw_at_order_one(Net(attention)).eval()
    with torch.no_grad():
        attention.bias.mul_(500)
    (state,) = seen(model, 16, 24).values()
    assert state.reaches[0].hidden is None
    assert (state.taps["softmax"][0] == 0).any(), "it hides keys all the same"


def test_heads_that_talk_are_seen_before_they_do():
    model = draw_at_order_one(Net(Attention("talking heads", 24))).eval()
    (state,) = seen(model, 16, 24, ("softmax", "weights")).values()
    (softmax,), (weights,) = state.taps["softmax"], state.taps["weights"]
    torch.testing.assert_close(softmax.sum(-1), torch.ones(2, 1, HEADS, 24))
    mixed = model.attention.mixing(softmax.permute(0, 1, 3, 4, 2)).permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(weights, mixed)
    assert (weights.sum(-1) - 1).abs().max() > 0.1


def test_without_mixing_both_taps_are_one_tensor():
    (state,) = seen(Net(Attention("plain", 24)).eval(), 16, 24, ("softmax", "weights")).values()
    assert state.taps["softmax"][0] is state.taps["weights"][0]


def test_keys_on_a_coarser_map_are_where_their_pixels_are():
    state, _ = of(Coarse())
    (reach,) = state.reaches
    assert (reach.queries.grid, reach.keys.grid) == ((4, 6), (2, 3))
    rows, columns = np.divmod(np.arange(24), 6)
    np.testing.assert_allclose(reach.queries.pixels, np.stack([rows, columns], 1) * 4 + 2)
    rows, columns = np.divmod(np.arange(6), 3)
    np.testing.assert_allclose(reach.keys.pixels, np.stack([rows, columns], 1) * 8 + 4)
    assert reach.distance[0, 0] == pytest.approx(np.hypot(2, 2))


def test_windows_of_distant_positions():
    state, _ = of(Dilated())
    (reach,) = state.reaches
    assert reach.keys.grid == (4, 6)
    steps = np.stack(np.divmod(np.arange(6), 3), 1)
    np.testing.assert_allclose(reach.keys.pixels, steps * 8 + 2)
    grid = np.arange(24).reshape(4, 6)
    expected = [grid[y::2, x::2].ravel() for y in (0, 1) for x in (0, 1)]
    np.testing.assert_array_equal(reach.keys.cells, expected)


def test_a_learned_query_has_no_position():
    """As in the pooling head of SigLIP."""
    _, (head,) = of(Attention("plain", 24), pooled=True)
    (reach,) = head.reaches
    assert not reach.queries.inside.any()
    assert reach.queries.grid == (0, 0)
    assert reach.keys.inside.all()
    assert np.isnan(reach.distance).all()
    weights = head.taps["softmax"][0]
    assert weights.shape == (2, 1, HEADS, 2, 24)


def test_prefix_tokens_come_first_in_a_vit(replayed):
    _, ours = replayed(
        "vit_tiny_patch16_224", 16, img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=1,
        reg_tokens=2,
    )  # fmt: skip
    with torch.no_grad():
        (state,) = [s for s in ours.walk(torch.rand(2, 3, 16, 16), {"softmax"}) if s.reaches]
    (reach,) = state.reaches
    for side in (reach.queries, reach.keys):
        np.testing.assert_array_equal(side.inside, [False] * 3 + [True] * 16)
        np.testing.assert_array_equal(side.cells, [[-1] * 3 + list(range(16))])
        assert side.pixels[3:5].tolist() == [[2, 2], [2, 6]]


@pytest.fixture(scope="module")
def swin():
    """Swin with a map of 8 × 8 positions, and with one of 6 × 6 that windows of 4 do not divide."""
    found = {}
    for size in (16, 12):
        torch.manual_seed(0)
        model = timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=size, patch_size=2, window_size=4,
            embed_dim=12, depths=(2,), num_heads=(3,),
        )  # fmt: skip
        model = draw_at_order_one(model).eval()
        found[size] = model, list(seen(model, size, size).values())
    return found


def test_shifted_windows(swin):
    from timm.models.swin_transformer import window_partition

    model, states = swin[16]
    grid = torch.arange(64).reshape(1, 8, 8, 1)
    for state, block, shift in zip(states, model.layers[0].blocks, (0, 2), strict=True):
        (reach,) = state.reaches
        cells = window_partition(torch.roll(grid, (-shift, -shift), (1, 2)), (4, 4)).flatten(1)
        np.testing.assert_array_equal(reach.keys.cells, cells)
        np.testing.assert_array_equal(reach.queries.cells, cells)
        assert reach.keys.pixels[:5].tolist() == [[1, 1], [1, 3], [1, 5], [1, 7], [3, 1]]
        if not shift:
            assert reach.hidden is None
        else:
            assert torch.equal(reach.hidden, (block.attn_mask < 0)[:, None].expand(4, 3, 16, 16))


def test_padding_makes_no_pixels_smaller(swin):
    """Six rows in two windows of four: a step is 2 pixels, and two rows are no positions."""
    _, (plain, shifted) = swin[12]
    (reach,) = plain.reaches
    assert reach.keys.grid == (6, 6)
    assert reach.keys.pixels[:2].tolist() == [[1, 1], [1, 3]]
    assert reach.keys.cells[0].tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 20, 21]
    assert reach.keys.cells[1][:4].tolist() == [4, 5, -1, -1]
    assert (reach.keys.cells[2][8:] == -1).all()
    assert shifted.reaches[0].keys.cells is None, "whether it was padded or shifted first"
