import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.fourier import frequencies, log_amplitudes, mirror_correction


def relative(maps: torch.Tensor, direction="diagonal") -> torch.Tensor:
    log = log_amplitudes(maps, direction)
    return log - log[:, :1]


def naive_diagonal(maps: torch.Tensor) -> torch.Tensor:
    """The paper's recipe, with the highest frequency that it leaves out."""
    log = (torch.fft.fft2(maps).abs() + 1e-6).log().mean(1)
    return torch.stack([log[:, k, k] for k in range(maps.shape[-1] // 2 + 1)], 1)


@pytest.mark.parametrize("order", [1, 3, 4])
def test_a_pure_cosine_has_one_frequency(order):
    """1 + cos along the diagonal: amplitude H² at 0, half of that at its own frequency."""
    side = 8
    place = torch.arange(side, dtype=torch.float64)
    phase = 2 * math.pi * order * (place[:, None] + place) / side
    found = relative((1 + phase.cos())[None, None])[0]
    at = frequencies(side, side)
    expected = 0.0 if order == side // 2 else math.log(0.5)  # at π the two halves meet
    assert found[order].item() == pytest.approx(expected, abs=1e-6)  # 1e-6 is added to 64
    assert at[order] == pytest.approx(2 * math.pi * order / side)
    others = [k for k in range(1, side // 2 + 1) if k != order]
    assert all(found[k] < -10 for k in others)


def test_a_box_blur_has_its_closed_form():
    """Two taps in each direction, round the border: |cos(ω/2)|² along the diagonal."""
    side = 16
    x = torch.randn(5, 7, side, side, dtype=torch.float64, generator=seeded(0))
    blurred = sum(x.roll((i, j), (2, 3)) for i in (0, 1) for j in (0, 1)) / 4
    gain = relative(blurred) - relative(x)
    omega = torch.from_numpy(frequencies(side, side))
    expected = (omega[:-1] / 2).cos().square().log()
    # Where 1e-6 is added to amplitudes of order ten.
    torch.testing.assert_close(gain[:, :-1], expected.expand(5, -1), atol=1e-5, rtol=0)
    assert (gain[:, -1] < -10).all()  # nothing passes at π


@pytest.mark.parametrize("direction", ["diagonal", "radial"])
def test_white_noise_is_flat(direction):
    """E log|F| = (log n² - γ)/2 for complex bins; real ones (0 and π) lie (log 2)/2 lower."""
    x = torch.randn(64, 64, 16, 16, dtype=torch.float64, generator=seeded(1))
    found = log_amplitudes(x, direction).mean(0)
    level = (math.log(16**2) - np.euler_gamma) / 2
    inner = found[1:-1]
    # 4096 maps, deviation of log|F| is π/√24 ≈ 0.64: a standard error of 0.01.
    assert (inner - level).abs().max() < 0.05
    assert found[0].item() == pytest.approx(level - math.log(2) / 2, abs=0.06)


@pytest.mark.parametrize("direction", ["diagonal", "radial"])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (2, 3), (4, 6), (6, 4), (5, 8), (8, 5), (7, 7)])
def test_the_correction_is_the_share_of_bins_that_are_real(size, direction):
    """By the spectrum of noise itself: where its imaginary part is 0, whatever the map."""
    height, width = size
    x = torch.randn(1, 1, height, width, dtype=torch.float64, generator=seeded(3))
    real = (torch.fft.fft2(x)[0, 0].imag.abs() < 1e-9).double()
    expected = torch.zeros(len(frequencies(height, width)), dtype=torch.float64)
    if direction == "diagonal":
        short, long = sorted(size)
        real = real if height <= width else real.T
        for order in range(1, len(expected)):
            low, share = divmod(order * long / short, 1)
            high = min(int(low) + 1, long - 1)
            expected[order] = real[order, int(low)] * (1 - share) + real[order, high] * share
    else:
        side = min(size)
        rows, columns = (np.fft.fftfreq(n) * side for n in size)
        radius = np.floor(np.hypot(rows[:, None], columns) + 0.5 + 1e-9)
        for order in range(1, len(expected)):
            expected[order] = real[torch.from_numpy(radius == order)].mean()
    found = mirror_correction(height, width, direction)
    np.testing.assert_allclose(found, expected.numpy() * math.log(2) / 2, atol=1e-12)


@pytest.mark.parametrize("side", [1, 2, 7, 8, 14])
@pytest.mark.parametrize("last", [False, True])
def test_equals_the_full_transform(side, last):
    x = torch.randn(3, 5, side, side, dtype=torch.float64, generator=seeded(side)) + 3
    if last:
        x = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(log_amplitudes(x), naive_diagonal(x), rtol=0, atol=1e-9)


def test_single_precision_is_good_to_1e_5_on_a_large_mean():
    x = torch.randn(4, 64, 56, 56, generator=seeded(2)) + 10
    found = log_amplitudes(x).double().mean(0)
    torch.testing.assert_close(found, naive_diagonal(x.double()).mean(0), rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 9), st.integers(2, 9), st.sampled_from(["diagonal", "radial"]), st.integers(0, 9)
)
def test_invariant_to_shift_scale_and_transposition(height, width, direction, seed):
    x = torch.randn(2, 3, height, width, dtype=torch.float64, generator=seeded(seed)) + 1
    curve = relative(x, direction)
    assert curve.shape == (2, len(frequencies(height, width)))
    close = dict(rtol=0, atol=1e-4)  # of the 1e-6 that is added before the logarithm
    torch.testing.assert_close(relative(x.roll((1, 2), (2, 3)), direction), curve, **close)
    torch.testing.assert_close(relative(7 * x, direction), curve, **close)
    torch.testing.assert_close(relative(x.transpose(2, 3), direction), curve, **close)


def test_a_rectangle_agrees_with_the_square_where_bins_meet():
    """Every row twice as long: the same image of one wave has the same frequency."""
    place = torch.arange(16, dtype=torch.float64)
    wave = (2 * math.pi * 2 * (place[:8, None] + place) / 8).cos()[None, None]
    found = relative(1 + wave)[0]
    assert int(found[1:].argmax()) + 1 == 2
    assert found[2].item() == pytest.approx(math.log(0.5), abs=1e-6)


def test_rings_hold_all_bins_up_to_pi_once():
    from retinoscope.numerics.fourier import _rings

    ring, count = _rings(8, 8, torch.device("cpu"))
    radius = np.hypot(*np.meshgrid(*[np.fft.fftfreq(8) * 8] * 2))
    assert count.sum().item() == (np.floor(radius + 0.5) <= 4).sum()
    assert count[0] == 1
    assert len(ring) == 64


def test_an_odd_side_does_not_reach_pi():
    assert frequencies(7, 7)[-1] == pytest.approx(6 * math.pi / 7)
    assert frequencies(8, 8)[-1] == pytest.approx(math.pi)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
