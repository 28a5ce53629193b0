"""Both watchers against their naive twin, on the four families of the paper."""

import numpy as np
import pytest
import torch

from probes import twin
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject

SHALLOW = {
    "resnet18": ({"layers": (1, 1, 1, 1)}, 64),
    "vit_tiny_patch16_224": ({"depth": 2, "img_size": 64, "patch_size": 8}, 64),
    "pit_ti_224": ({"depth": (1, 1, 1), "img_size": 64}, 64),
    "swin_tiny_patch4_window7_224": (
        {"depths": (1, 1), "num_heads": (3, 6), "img_size": 64, "window_size": 4}, 64,
    ),
}  # fmt: skip
ALL = [(name, *SHALLOW[name]) for name in twin.TWINS]
FULL = [pytest.param(name, {}, 224, marks=pytest.mark.proof) for name in twin.TWINS]


@pytest.mark.parametrize(("name", "options", "size"), [*ALL, *FULL])
def test_fourier_and_variance_equal_the_naive_twin(name, options, size, subject_of, tmp_path):
    """In double precision; in single, an amplitude near 0 makes logarithms of rounding."""
    subject = subject_of(name, options, images=3, batch=2, precision="float64", size=(size, size))
    found = Run(tmp_path).measure_all([Fourier(), Variance()], subject)
    fourier, variance = found["fourier"], found["variance"]
    curves, variances = naive(name, subject, 3)

    assert len(fourier.units) == len(variance.units) == len(curves)
    for mine, theirs in zip(fourier.log_amplitude, curves, strict=True):
        np.testing.assert_allclose(mine[np.isfinite(mine)], theirs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(variance.variance, variances, rtol=1e-9)
    assert np.ptp(fourier.high) > 0.1, "nothing differs between units: nothing would be shown"
    assert np.ptp(variance.variance) > 0.1


@pytest.mark.parametrize(("name", "options", "size"), [ALL[1], *FULL[:2]])
def test_single_precision_is_as_true_as_the_twins(name, options, size, subject_of, tmp_path):
    settings = {"images": 3, "size": (size, size)}
    subject = subject_of(name, options, **settings)
    exact = load_subject(subject.backbone, "cues", name=name, precision="float64", **settings)
    found = Run(tmp_path).measure_all([Fourier(), Variance()], subject)
    curves, variances = naive(name, subject, 3)
    truth, true_variances = naive(name, exact, 3)
    mine, theirs, true = (
        np.concatenate([np.asarray(row)[np.isfinite(np.asarray(row))] for row in rows])
        for rows in (found["fourier"].log_amplitude, curves, truth)
    )
    off, twins = np.abs(mine - true), np.abs(theirs - true)
    assert np.median(off) < 1e-5
    assert off.max() < max(1e-5, 2 * twins.max())
    np.testing.assert_allclose(found["variance"].variance, true_variances, rtol=1e-5)
    np.testing.assert_allclose(found["variance"].variance, variances, rtol=1e-5)


def naive(name, subject, count):
    """The twin's curves and variances of the subject's first images."""
    (images,) = [b.images for b in subject.splits["test"].batches(range(count), count)]
    places = list(twin.TWINS[name](subject.backbone))
    return twin.measure(subject.model, places, subject.to_device(images))


def test_steps_are_differences_of_neighbours(subject_of, tmp_path):
    small = {"img_size": 32, "patch_size": 4}
    subject = subject_of("vit_tiny_patch16_224", small, images=5, size=(32, 32))
    found = Run(tmp_path).measure_all([Fourier(), Variance()], subject)
    fourier, variance = found["fourier"], found["variance"]
    np.testing.assert_allclose(fourier.high_step[1:], np.diff(fourier.high), atol=1e-12)
    np.testing.assert_allclose(variance.step[1:], np.diff(variance.variance), rtol=1e-9)
    assert np.isnan(fourier.high_step[0])
    assert np.isnan(variance.step[0])


@torch.no_grad()
def test_errors_are_those_of_the_images(subject_of, tmp_path):
    """Written out for one unit: the deviation over images by the root of their number."""
    subject = subject_of("resnet18", images=6, size=(64, 64))
    found = Run(tmp_path).measure_all([Fourier(), Variance()], subject)
    (images,) = [b.images for b in subject.splits["test"].batches(range(6), 6)]
    maps = subject.replay.states(images)["layer2.1"].maps
    each = maps.flatten(2).var(-1).mean(1).double().numpy()
    place = found["variance"].units.index("layer2.1")
    expected = each.std(ddof=1) / 6**0.5
    assert found["variance"].variance_error[place] == pytest.approx(expected, rel=1e-4)
    before = subject.replay.states(images)["layer2.0"].maps
    steps = each - before.flatten(2).var(-1).mean(1).double().numpy()
    paired = steps.std(ddof=1) / 6**0.5
    assert found["variance"].step_error[place] == pytest.approx(paired, rel=1e-3)
