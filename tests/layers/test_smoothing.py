import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import softmax

from retinoscope.layers.smoothing import Blur, Prob, Smooth, check_smoothing

KINDS = ["tanh", "bn_tanh", "sigmoid", "softmax", "clamp", "scale", "off"]
kernels = st.integers(1, 7)
sides = st.integers(1, 9)
seeds = st.integers(0, 2**31)


def maps(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def blurred_by_loops(x, kernel):
    """Each point's neighbours one by one; beyond the border stands the nearest point inside."""
    before = (kernel - 1) // 2
    height, width = x.shape[-2:]
    out = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            for di in range(-before, kernel - before):
                for dj in range(-before, kernel - before):
                    row = min(max(i + di, 0), height - 1)
                    column = min(max(j + dj, 0), width - 1)
                    out[..., i, j] += x[..., row, column] / kernel**2
    return out


@given(kernels, sides, sides, seeds)
@settings(max_examples=40, deadline=None)
def test_a_blur_is_the_mean_of_neighbours(kernel, height, width, seed):
    x = maps(2, 3, height, width, seed=seed)
    found = Blur(kernel)(x)
    assert found.shape == x.shape
    # 49 additions of numbers of order one, in another order
    torch.testing.assert_close(found, blurred_by_loops(x, kernel), rtol=0, atol=1e-14)


@given(kernels, sides, sides, st.integers(1, 5), st.integers(-(2**12), 2**12))
@settings(deadline=None)
def test_a_constant_stays_exactly_what_it_is(kernel, height, width, channels, value):
    """Of twelve bits, so that neither the sum of 49 nor its division rounds."""
    x = torch.full((1, channels, height, width), value / 64)
    assert torch.equal(Blur(kernel)(x), x)


@given(kernels, sides, sides, seeds)
@settings(deadline=None)
def test_what_is_away_from_the_border_is_spread_and_not_lost(kernel, height, width, seed):
    inner = maps(1, 2, height, width, seed=seed)
    x = nn.functional.pad(inner, (kernel,) * 4)
    torch.testing.assert_close(Blur(kernel)(x).sum((2, 3)), x.sum((2, 3)), rtol=0, atol=1e-12)


def test_a_replicated_border_is_no_darker_and_a_grown_one_is():
    x = torch.ones(1, 1, 4, 4)
    assert Blur(2).forward(x).min() == 1
    assert Blur(2, "grow")(x)[0, 0, 0].tolist() == [0.25, 0.5, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_growing_is_the_average_pool_of_the_original(kernel):
    x = maps(2, 3, 6, 5)
    found = Blur(kernel, "grow")(x)
    assert torch.equal(found, nn.AvgPool2d(kernel, stride=1, padding=kernel // 2)(x))
    assert found.shape[-2:] == (6 + (kernel % 2 == 0), 5 + (kernel % 2 == 0))


@pytest.mark.parametrize("padding", ["replicate", "grow"])
def test_kernel_one_without_prob_is_the_identity_bit_for_bit(padding):
    x = maps(2, 3, 5, 5)
    assert torch.equal(Smooth(kernel=1, padding=padding, prob="off")(x), x)


def test_prob_by_its_formulas():
    x = maps(2, 4, 3, 3) * 20
    assert torch.equal(Prob()(x), (10 * torch.tanh(x / 10)).clamp_min(0))
    assert torch.equal(Prob("tanh", 3)(x), (3 * torch.tanh(x / 3)).clamp_min(0))
    # σ(x) = (1 + tanh(x / 2)) / 2, so this is a tanh with twice the ceiling
    torch.testing.assert_close(Prob("sigmoid")(x), Prob("tanh", 20)(x))
    assert torch.equal(Prob("softmax")(x), 10 * softmax(x / 10, 1))
    assert torch.equal(Prob("clamp")(x), x.clamp(0, 6))
    assert torch.equal(Prob("scale")(x), x / 5)
    assert torch.equal(Prob("off")(x), x)
    normed = Prob("bn_tanh", channels=4).double()
    assert torch.equal(normed(x), Prob()(nn.BatchNorm2d(4).double()(x)))


@pytest.mark.parametrize("kind", ["tanh", "sigmoid"])
def test_small_values_pass_unchanged(kind):
    x = torch.tensor([1e-3], dtype=torch.float64)
    torch.testing.assert_close(Prob(kind)(x), x, rtol=1e-7, atol=0)  # the error is (x/τ)²/3


def test_smooth_blurs_what_prob_has_bounded():
    x = maps(2, 3, 5, 5) * 20
    assert torch.equal(Smooth()(x), Blur(2)(Prob("tanh", 10)(x)))
    assert not torch.allclose(Smooth()(x), Prob("tanh", 10)(Blur(2)(x)))
    assert torch.equal(Smooth(3, "grow", "clamp", 2)(x), Blur(3, "grow")(x.clamp(0, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_batch_norm_has_weights(kind):
    layer = Smooth(prob=kind, channels=4)
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = [f"prob.norm.{name}" for name in norm] if kind == "bn_tanh" else []
    assert list(layer.state_dict()) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", ["replicate", "grow"])
def test_exports_copies_and_half_precision(kind, padding):
    layer = Smooth(padding=padding, prob=kind, channels=3).eval()
    x = maps(2, 3, 5, 6).float() * 10
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    half = layer.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


def test_second_derivatives_for_hessians():
    x = maps(1, 2, 3, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(Smooth(), x)


def test_settings_are_printed():
    assert repr(Blur()) == "Blur(kernel=2, padding='replicate')"
    assert repr(Prob()) == "Prob('tanh', tau=10)"
    assert repr(Prob("off")) == "Prob('off')"
    assert "kernel=3, padding='grow', prob='clamp', tau=6" in repr(Smooth(3, "grow", "clamp"))


def test_mistakes_say_what_there_is():
    with pytest.raises(ValueError, match=r"must be at least 1; got kernel=0"):
        Blur(0)
    with pytest.raises(ValueError, match=r"no padding 'zeros' for a blur.*replicate, grow"):
        Blur(2, "zeros")
    with pytest.raises(ValueError, match=r"no prob 'relu'. It is one of: tanh, bn_tanh, .*off"):
        Prob("relu")
    with pytest.raises(ValueError, match=r"tau must be positive; got tau=-1"):
        Prob("tanh", -1)
    with pytest.raises(ValueError, match=r"'bn_tanh' normalises each channel: pass channels="):
        Prob("bn_tanh")
    with pytest.raises(ValueError, match=r"0 or 1 for each of the 4 stages; got \(2, 2, 2, 2\)"):
        check_smoothing((2, 2, 2, 2), 4)
    with pytest.raises(ValueError, match=r"each of the 4 stages; got \(1, 1\).*smooth_kernel"):
        check_smoothing((1, 1), 4)
