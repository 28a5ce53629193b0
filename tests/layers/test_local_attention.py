import math

import pytest
import torch
from timm.models.swin_transformer import WindowAttention, window_partition, window_reverse

from retinoscope.layers.local_attention import LocalAttention


def drawn(**options) -> LocalAttention:
    """Weights and position biases of order one, in float64."""
    torch.manual_seed(0)
    layer = LocalAttention(**options).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / max(1, parameter[0].numel()) ** 0.5)
        layer.relative_bias.normal_()
    return layer


def naive(layer: LocalAttention, x: torch.Tensor) -> torch.Tensor:
    """Every pixel by itself: its window, its keys, its biases, one head at a time."""
    images, _, height, width = x.shape
    p, d = layer.window, layer.head_width
    out = x.new_empty(images, layer.proj.out_features, height, width)
    for n in range(images):
        for i in range(height):
            for j in range(width):
                top, left = i // p * p, j // p * p
                keys = [
                    (a, b)
                    for a in range(top, min(top + p, height))
                    for b in range(left, min(left + p, width))
                ]
                heads = []
                for h in range(layer.heads):
                    q, k, v = layer.qkv.weight.view(3, layer.heads, d, -1)[:, h]
                    table = layer.relative_bias[h if layer.tables == "per_head" else 0]
                    logits = torch.stack(
                        [
                            (q @ x[n, :, i, j]) @ (k @ x[n, :, a, b]) / math.sqrt(d)
                            + table[i - a + p - 1, j - b + p - 1]
                            for a, b in keys
                        ]
                    )
                    values = torch.stack([v @ x[n, :, a, b] for a, b in keys])
                    heads.append(logits.softmax(0) @ values)
                out[n, :, i, j] = layer.proj(torch.cat(heads))
    return out


@pytest.mark.parametrize("tables", ["per_head", "shared"])
@pytest.mark.parametrize("size", [(8, 8), (4, 12), (7, 5), (3, 2)])
@pytest.mark.parametrize("training", [False, True])
def test_equals_a_twin_over_every_pixel_and_its_window(tables, size, training):
    layer = drawn(channels=6, out=5, heads=2, head_width=3, window=4, tables=tables)
    x = torch.randn(2, 6, *size, dtype=torch.float64)
    torch.testing.assert_close(layer.train(training)(x), naive(layer, x), rtol=0, atol=1e-10)


def test_equals_swins_attention_with_the_same_weights():
    layer = drawn(channels=8, heads=2, head_width=4, window=7)
    peer = WindowAttention(8, 2, head_dim=4, window_size=7, qkv_bias=False).double()
    with torch.no_grad():
        peer.qkv.weight.copy_(layer.qkv.weight)
        peer.proj.weight.copy_(layer.proj.weight)
        peer.proj.bias.copy_(layer.proj.bias)
        peer.relative_position_bias_table.copy_(layer.relative_bias.flatten(1).T)
    x = torch.randn(2, 8, 14, 21, dtype=torch.float64)
    windows = window_partition(x.permute(0, 2, 3, 1), (7, 7)).view(-1, 49, 8)
    expected = window_reverse(peer(windows).view(-1, 7, 7, 8), (7, 7), 14, 21).permute(0, 3, 1, 2)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-10)


def test_biases_depend_on_the_relative_position_alone():
    """Moving query and key together changes nothing; other offsets read other entries."""
    layer = drawn(channels=4, heads=3, head_width=2, window=5)
    bias = layer.bias().view(3, 5, 5, 5, 5)
    for down in range(1, 5):
        for right in range(5):
            here = slice(0, 5 - down), slice(0, 5 - right)
            there = slice(down, 5), slice(right, 5)
            assert torch.equal(bias[:, *there, *there], bias[:, *here, *here])
    assert len(torch.unique(bias[0])) == 9 * 9
    assert torch.equal(bias[:, 4, 0, 0, 3], layer.relative_bias[:, 4 - 0 + 4, 0 - 3 + 4])


def test_moving_the_image_by_a_window_moves_the_outcome():
    layer = drawn(channels=4, heads=2, head_width=2, window=4)
    x = torch.randn(1, 4, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x.roll((4, 8), (2, 3))), layer(x).roll((4, 8), (2, 3)))
    assert not torch.allclose(layer(x.roll(1, 3)), layer(x).roll(1, 3))


def test_what_is_padded_cannot_be_seen():
    """A map of 6×6 in windows of 4: its corner window holds 2×2 real positions and no others."""
    layer = drawn(channels=4, heads=2, head_width=2, window=4)
    x = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    alone = layer(x)[..., 4:, 4:]
    torch.testing.assert_close(alone, layer(x[..., 4:, 4:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(8, 8), (6, 7)])
def test_training_and_eval_agree_and_every_parameter_learns(size):
    layer = drawn(channels=4, heads=2, head_width=2, window=4)
    x = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(layer.train()(x), layer.eval()(x))
    weight = torch.randn(2, 4, *size, dtype=torch.float64)
    gradients = []
    for training in (True, False):
        layer.zero_grad()
        (layer.train(training)(x) * weight).sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().max() > 1e-3


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="tables is one of per_head, shared; got 'own'"):
        LocalAttention(4, tables="own")
    with pytest.raises(ValueError, match="must be at least 1; got 3, 64, 0"):
        LocalAttention(4, window=0)
