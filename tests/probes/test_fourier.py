import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import retinoscope
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.sight import Group, Sight
from retinoscope.core.unit import Grid, Kind, Unit
from retinoscope.probes.fourier import Fourier
from retinoscope.run.subject import load_subject


class Blur(nn.Module):
    """Two taps either way round the border: |cos(ω/2)|² along the diagonal."""

    def forward(self, x):
        return sum(x.roll((i, j), (2, 3)) for i in (0, 1) for j in (0, 1)) / 4


class Blurring(nn.Module):
    """A stem, a residual block that does nothing, and one whose sum is a blur of its input."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, padding_mode="circular")
        self.keep = nn.Conv2d(channels, channels, 1)
        self.mix = nn.Conv2d(channels, channels, 2, padding=1, bias=False, groups=channels)
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.keep(x)
        wrapped = torch.cat([x, x[:, :, :1]], 2)
        wrapped = torch.cat([wrapped, wrapped[..., :1]], 3)
        x = x + nn.functional.conv2d(wrapped, self.mix.weight, groups=x.shape[1])
        return self.head(x.mean((2, 3)))


@pytest.fixture
def blurring():
    """The second block adds (blur - identity), so that its output is exactly the blur."""
    model = Blurring().double().eval()
    with torch.no_grad():
        model.keep.weight.zero_()
        model.keep.bias.zero_()
        model.mix.weight.fill_(0.25)
        model.mix.weight[:, :, 0, 0] -= 1
    return load_subject(model, "cues", name="blurring", size=(16, 16), images=20)


def test_a_unit_that_blurs_has_the_blurs_closed_form_as_its_step(blurring):
    found = retinoscope.measure(Fourier(), blurring)
    assert found.kinds[-1] == "conv"
    step = found.step[-1]
    omega = np.pi * found.frequency[-1]
    expected = np.log(np.cos(omega[:-1] / 2) ** 2)
    np.testing.assert_allclose(step[:-1], expected, atol=1e-3)  # 1e-6 added to small amplitudes
    assert found.high_step[-1] < -5
    # A unit that does nothing has a step of exactly nothing.
    np.testing.assert_array_equal(found.step[1], 0)


def test_frequencies_are_true(subject_of):
    found = retinoscope.measure(Fourier(), subject_of("resnet18", images=2, size=(56, 56)))
    sides = {14: 0, 7: 1, 4: 2, 2: 3}
    for side in sides:
        row = next(r for r in found.frequency if np.isfinite(r).sum() == side // 2 + 1)
        np.testing.assert_allclose(row[: side // 2 + 1], 2 * np.arange(side // 2 + 1) / side)


def test_the_papers_axis_leaves_out_the_highest_and_calls_the_next_pi(subject_of):
    subject = subject_of("resnet18", images=2, size=(56, 56))
    true = retinoscope.measure(Fourier(), subject)
    paper = retinoscope.measure(Fourier(axis="paper"), subject)
    kept = np.isfinite(paper.log_amplitude[0]).sum()
    assert kept == 7  # of a side of 14: 0 … 6, without the 7th
    np.testing.assert_allclose(paper.log_amplitude[0][:kept], true.log_amplitude[0][:kept])
    np.testing.assert_allclose(paper.frequency[0][:kept], np.linspace(0, 1, 7))
    odd = next(i for i, r in enumerate(true.frequency) if np.isfinite(r).sum() == 4)  # 7: 0 … 3
    np.testing.assert_allclose(paper.log_amplitude[odd][:4], true.log_amplitude[odd][:4])


def test_bands_are_common_and_never_beyond_what_a_map_holds(subject_of):
    subject = subject_of("resnet18", images=2, size=(56, 56))
    own = retinoscope.measure(Fourier(), subject)
    banded = retinoscope.measure(Fourier(bands=15), subject)
    assert banded.frequency.shape == (len(own.units), 15)
    # Of 14: every second band is a frequency of its own.
    np.testing.assert_allclose(banded.log_amplitude[0][::2], own.log_amplitude[0][:8], atol=1e-9)
    middle = (own.log_amplitude[0][0] + own.log_amplitude[0][1]) / 2
    assert banded.log_amplitude[0][1] == pytest.approx(middle)
    odd = next(i for i, r in enumerate(own.frequency) if np.isfinite(r).sum() == 4)
    assert np.nanmax(banded.frequency[odd]) == pytest.approx(math.floor(6 / 7 * 14) / 14)
    with pytest.raises(ValueError, match="fourier: bands is 2 or more; got"):
        Fourier(bands=1)


def test_the_step_of_the_highest_frequency_spans_odd_and_even_maps(subject_of):
    """From a side of 7, which does not reach π, to one of 4, which does: no gap."""
    found = retinoscope.measure(Fourier(), subject_of("resnet18", images=3, size=(56, 56)))
    np.testing.assert_allclose(found.high_step[1:], np.diff(found.high), atol=1e-9)
    smaller = [i for i, s in enumerate(found.subsamples) if s and i]
    assert np.isnan(found.step[smaller]).any()


def test_rings_and_rectangles(subject_of):
    subject = subject_of("resnet18", images=3, size=(64, 96))
    for direction in ("diagonal", "radial"):
        found = retinoscope.measure(Fourier(direction=direction), subject)
        assert len(found.units) == 9
        assert np.isfinite(found.high).all()
        assert (found.log_amplitude[:, 0] == 0).all()


def curve_of_noise(probe: Fourier, size: tuple[int, int], count: int):
    """White noise as the maps of one unit, through the probe from the first step to the last."""
    unit = Unit("noise", Kind.CONV, 1, 0, False, False, Grid("NCHW", *size), 1, 0, 0)
    anatomy, images = Anatomy("noise", (unit,)), 20
    generator, partials = torch.Generator().manual_seed(sum(size)), []
    groups = max(5, count * size[0] * size[1] // 20_000_000)
    channels = -(-count // (groups * images))
    for _ in range(groups):
        maps = torch.randn(images, channels, *size, generator=generator)
        state = SimpleNamespace(unit=unit, maps=maps)
        seen = probe.watch(Sight((state,), tuple(range(images))))
        rows = {name: tensor.double().numpy() for name, tensor in seen.items()}
        partials.append(probe.gather(Group(anatomy, {"noise": rows}, tuple(range(images)))))
    return probe.combine(anatomy, partials)


@pytest.mark.parametrize("direction", ["diagonal", "radial"])
@pytest.mark.parametrize(
    ("size", "count"),
    [
        ((7, 7), 200_000), ((8, 8), 200_000), ((14, 14), 100_000), ((31, 31), 20_000),
        ((56, 56), 20_000), ((6, 8), 200_000), ((8, 12), 100_000), ((7, 8), 200_000),
        pytest.param((56, 56), 200_000, marks=pytest.mark.proof),
    ],
)  # fmt: skip
def test_white_noise_is_flat_above_frequency_0(size, count, direction):
    """Within four standard errors at every frequency, and within 0.01 at π.

    At π a single real bin decides: its logarithm deviates by π/√8 ≈ 1.1 from map to map, so that
    200,000 maps have a standard error of 0.0025, and 20,000 one of 0.008.
    """
    found = curve_of_noise(Fourier(direction=direction), size, count)
    curve, error = found.log_amplitude[0][1:], found.log_amplitude_error[0][1:]
    off = curve - curve[:-1].mean()
    assert (np.abs(off) < 4 * error).all()
    assert (error < 0.02).all()
    assert abs(off[-1]) < 0.01
    # Frequency 0 is a real bin that is left alone: noise lies ½ ln 2 above it.
    assert np.abs(curve - math.log(2) / 2).max() < 0.04


def test_the_papers_curve_kinks_at_pi_on_even_maps_alone():
    for side, kink in ((8, -math.log(2) / 2), (7, 0.0)):
        curve = curve_of_noise(Fourier(mirror="paper"), (side, side), 100_000).log_amplitude[0]
        assert curve[-1] - curve[1:-1].mean() == pytest.approx(kink, abs=0.02)


@pytest.mark.parametrize("direction", ["diagonal", "radial"])
def test_steps_between_maps_of_equal_size_are_those_of_the_paper(direction, subject_of):
    subject = subject_of("resnet18", images=3, size=(56, 56), precision="float64")
    ours, papers = (
        retinoscope.measure(Fourier(direction=direction, mirror=mirror), subject)
        for mirror in ("corrected", "paper")
    )
    equal = [i for i, subsamples in enumerate(ours.subsamples) if i and not subsamples]
    np.testing.assert_allclose(ours.step[equal], papers.step[equal], atol=1e-12)
    np.testing.assert_allclose(ours.high_step[equal], papers.high_step[equal], atol=1e-12)
    # From a side of 7 to one of 4: what was parity is gone.
    odd = next(i for i, r in enumerate(ours.frequency) if i and np.isfinite(r).sum() == 3)
    assert ours.high_step[odd] > papers.high_step[odd] + 0.05


def test_scaling_all_maps_changes_nothing(blurring):
    base = retinoscope.measure(Fourier(), blurring)
    with torch.no_grad():
        blurring.backbone.stem.weight *= 5
        blurring.backbone.stem.bias *= 5
    scaled = retinoscope.measure(
        Fourier(), load_subject(blurring.backbone, "cues", size=(16, 16), images=20)
    )
    inner = base.log_amplitude[:, :-1]  # at π the blur leaves 1e-6
    np.testing.assert_allclose(scaled.log_amplitude[:, :-1], inner, atol=1e-3)


def test_pictures_of_the_first_images(subject_of):
    """The spectrum's middle is frequency 0; batches change nothing; maps are the first image's."""
    subject = subject_of("resnet18", images=6, size=(64, 48), batch=6)
    found = retinoscope.measure(Fourier(pictures=3), subject)
    assert found.pictured == ("conv1", "layer1.1", "layer2.1", "layer3.1", "layer4.1")
    (batch,) = subject.splits["test"].batches(range(3), 3)
    with torch.no_grad():
        maps = subject.replay.states(batch.images)["layer1.1"].maps.double()
    log = (torch.fft.fft2(maps).abs() + 1e-6).log().mean((0, 1))
    expected = torch.fft.fftshift(log - log[0, 0])
    assert found.spectra.shape == (5, *expected.shape) == (5, 16, 12)
    np.testing.assert_allclose(found.spectra[1], expected, atol=1e-4)
    chosen = maps[0, maps[0].flatten(1).var(1).argmax()]
    scaled = (chosen - chosen.min()) / (chosen.max() - chosen.min())
    np.testing.assert_allclose(found.maps[1], scaled, atol=1e-5)
    small = retinoscope.measure(
        Fourier(pictures=3), subject_of("resnet18", images=6, size=(64, 48), batch=2)
    )
    np.testing.assert_allclose(small.spectra, found.spectra, atol=1e-5)
    assert not retinoscope.measure(Fourier(pictures=0), subject).pictured
