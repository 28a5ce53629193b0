import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from retinoscope.layers.neighbourhood_attention import NeighbourhoodAttention, neighbourhood_mask
from retinoscope.models.order_one import draw_at_order_one

DIM, HEADS = 6, 2


def layer(kernel, **options):
    """The same weights whatever the options, except that a bias of the maps changes them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the first draw decides around what a bias is drawn anew
        made = NeighbourhoodAttention(DIM, HEADS, kernel, **options)
    return draw_at_order_one(made).double().eval()


def maps(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, DIM, height, width, generator=generator, dtype=torch.float64)


def projected(attention, x):
    """Queries, keys and values (N, heads, channels, H, W), and the map behind them."""
    tokens = F.conv2d(x, attention.qkv.weight, attention.qkv.bias)
    split = [part.unflatten(1, (HEADS, -1)) for part in tokens.chunk(3, 1)]
    return *split, lambda y: F.conv2d(y.flatten(1, 2), attention.proj.weight, attention.proj.bias)


def pixel_by_pixel(attention, x, radius):
    """Every image, head and pixel on its own, and only what lies in its window and in the map."""
    query, key, value, output = projected(attention, x)
    *_, channels, height, width = query.shape
    mixed = torch.zeros_like(value)
    for image in range(len(x)):
        for head in range(HEADS):
            for i in range(height):
                for j in range(width):
                    window = [
                        (a, b)
                        for a in range(i - radius, i + radius + 1)
                        for b in range(j - radius, j + radius + 1)
                        if 0 <= a < height and 0 <= b < width
                    ]
                    q = query[image, head, :, i, j]
                    logits = [q @ key[image, head, :, a, b] / channels**0.5 for a, b in window]
                    weights = torch.stack(logits).softmax(0)
                    for weight, (a, b) in zip(weights, window, strict=True):
                        mixed[image, head, :, i, j] += weight * value[image, head, :, a, b]
    return output(mixed)


def unfolded(attention, x, kernel):
    """The authors' way: keys and values of zero around the map take part like all others."""
    query, key, value, output = projected(attention, x)
    batch, _, channels, height, width = query.shape
    key, value = (
        F.unfold(part.flatten(1, 2), kernel, padding=kernel // 2).reshape(
            batch, HEADS, channels, kernel**2, height, width
        )
        for part in (key, value)
    )
    weights = ((query[:, :, :, None] * key).sum(2) / channels**0.5).softmax(2)
    return output((weights[:, :, None] * value).sum(3))


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(("height", "width"), [(4, 4), (3, 5), (1, 6)])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_agrees_with_every_pixel_on_its_own(kernel, height, width, qkv_bias):
    attention, x = layer(kernel, qkv_bias=qkv_bias), maps(height, width)
    expected = pixel_by_pixel(attention, x, kernel // 2)
    torch.testing.assert_close(attention(x), expected, rtol=0, atol=1e-10)  # float64


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 4), (2, 3)])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_zeros_outside_agree_with_unfolded_maps(kernel, height, width, qkv_bias):
    attention, x = layer(kernel, outside="zero", qkv_bias=qkv_bias), maps(height, width)
    expected = unfolded(attention, x, kernel)
    torch.testing.assert_close(attention(x), expected, rtol=0, atol=1e-10)  # float64
    absent = layer(kernel, qkv_bias=qkv_bias)(x)
    inside = (
        ...,
        slice(kernel // 2, height - kernel // 2),
        slice(kernel // 2, width - kernel // 2),
    )
    torch.testing.assert_close(absent[inside], expected[inside], rtol=0, atol=1e-10)
    assert (absent - expected)[..., 0, 0].abs().max() > 1e-3


@pytest.mark.parametrize("outside", ["absent", "zero"])
def test_without_a_kernel_attention_is_global(outside):
    x = maps(4, 6)
    expected = pixel_by_pixel(layer(None), x, radius=6)
    torch.testing.assert_close(layer(None, outside=outside)(x), expected, rtol=0, atol=1e-10)
    covering = layer(11)  # 2 · 6 − 1: from any corner to the opposite one
    torch.testing.assert_close(covering(x), expected, rtol=0, atol=1e-10)
    assert (layer(9)(x) - expected).abs().max() > 1e-4  # the farthest columns are out of sight


def test_a_window_of_one_is_value_then_projection():
    attention, x = layer(1), maps(3, 4)
    *_, value, output = projected(attention, x)
    torch.testing.assert_close(attention(x), output(value), rtol=0, atol=1e-12)


def test_mask_by_hand():
    hidden = -torch.inf
    assert neighbourhood_mask(2, 3, 1).tolist() == [
        [0 if a == b else hidden for b in range(6)] for a in range(6)
    ]
    # Two rows of three: column 0 does not see column 2, in either row.
    row = [0, 0, hidden, 0, 0, hidden]
    assert neighbourhood_mask(2, 3, 3)[0].tolist() == row
    assert neighbourhood_mask(2, 3, 3)[1].tolist() == [0] * 6
    with_prefix = neighbourhood_mask(2, 3, 3, prefix=2)
    assert with_prefix.shape == (8, 8)
    assert with_prefix[2].tolist() == [0, 0, *row]
    assert not with_prefix[:2].any()
    assert not with_prefix[:, :2].any()
    torch.testing.assert_close(with_prefix[2:, 2:], neighbourhood_mask(2, 3, 3))


def test_mask_agrees_with_distances():
    height, width, kernel, prefix = 5, 7, 5, 1
    mask = neighbourhood_mask(height, width, kernel, prefix, dtype=torch.float64)
    assert mask.dtype == torch.float64
    places = [divmod(n, width) for n in range(height * width)]
    for q, (i, j) in enumerate(places):
        for k, (a, b) in enumerate(places):
            seen = max(abs(i - a), abs(j - b)) <= 2
            assert mask[prefix + q, prefix + k] == (0 if seen else -torch.inf)


@pytest.mark.parametrize("kernel", [0, -3, 4, 8, 3.0, True])
def test_refuses_windows_without_a_centre(kernel):
    with pytest.raises(
        ValueError, match=r"centred on its query, so its side must be an odd number"
    ):
        neighbourhood_mask(8, 8, kernel)
    with pytest.raises(ValueError, match=rf"got {kernel!r}\. For a window .* kernel=None"):
        NeighbourhoodAttention(DIM, HEADS, kernel)


def test_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match=r"at least 1×1 .* got 0×3 and a prefix of 0"):
        neighbourhood_mask(0, 3, 3)
    with pytest.raises(ValueError, match="prefix of -1"):
        neighbourhood_mask(3, 3, 3, prefix=-1)
    with pytest.raises(ValueError, match="6 channels cannot be divided equally among 4 heads"):
        NeighbourhoodAttention(6, 4, 3)
    with pytest.raises(ValueError, match=r"outside is one of \('absent', 'zero'\); got 'wrap'"):
        NeighbourhoodAttention(6, 2, 3, outside="wrap")


@pytest.mark.parametrize("outside", ["absent", "zero"])
def test_gradients_are_exact(outside):
    attention = layer(3, outside=outside)
    x = maps(3, 2)[:1].requires_grad_()
    assert torch.autograd.gradcheck(attention, x)
    with sdpa_kernel(SDPBackend.MATH):  # the fused ones have no second derivative
        assert torch.autograd.gradgradcheck(attention, x)


@pytest.mark.parametrize("outside", ["absent", "zero"])
@pytest.mark.parametrize("kernel", [3, None])
def test_exports_and_runs_in_bfloat16(kernel, outside):
    attention = layer(kernel, outside=outside).float()
    x = maps(5, 4).float()
    expected = attention(x)
    exported = torch.export.export(attention, (x,)).module()
    torch.testing.assert_close(exported(x), expected)
    found = attention.bfloat16()(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.1)  # 8 bits of mantissa


def test_dropout_only_in_training():
    attention, x = layer(3, attn_drop=0.5, proj_drop=0.5), maps(4, 4)
    torch.testing.assert_close(attention(x), layer(3)(x))
    attention.train()
    assert not torch.equal(attention(x), attention(x))
