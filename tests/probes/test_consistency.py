from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import retinoscope
from numerics.test_consistency import naive
from probes.small import small
from retinoscope.core.errors import NotApplicable
from retinoscope.core.settings import WrongSetting
from retinoscope.data.views import GaussianImages
from retinoscope.numerics.consistency import by_distance, correlation_with_centre
from retinoscope.probes.consistency import Consistency
from retinoscope.run.subject import load_subject


class Deep(nn.Module):
    """Convolutions of 3 × 3 with ReLU, each of which is a unit.

    Their random weights are positive: otherwise channels of both signs nearly cancel.
    """

    def __init__(self, layers, width=8):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(3 if not k else width, width, 3, padding=1) for k in range(layers)
        )
        for layer in self.layers:
            layer.weight.data.abs_()
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x.mean((2, 3)))


def deep(layers, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Deep(layers).eval()
    return load_subject(model, "cues", name="deep", **settings)


def images_of(subject, probe, images):
    split = subject.split(probe.needs)
    (batch,) = split.batches(range(images), images)
    return batch.images


@pytest.mark.parametrize("family", ["cnn", "vit", "swin", "own"])
def test_equals_numpy(family):
    """Two groups of three images: covariances within groups, averaged."""
    subject = small(family)
    found = retinoscope.measure(Consistency(group=3), subject)
    assert found.images == 6
    with torch.no_grad():
        images = subject.to_device(images_of(subject, Consistency(), 6))
        states = [subject.replay.states(images[k : k + 3]) for k in (0, 3)]
    assert len(found.units) >= 3
    for place, unit in enumerate(found.units):
        maps = [one[unit].maps.double().numpy() for one in states]
        products, squares = np.mean([naive(one) for one in maps], 0)
        correlation = correlation_with_centre(products, squares)
        curve = by_distance(np.abs(correlation))
        # Sums are stored in single precision.
        np.testing.assert_allclose(found.correlation[place, : len(curve)], curve, atol=1e-6)
        covariance = found.covariance[place, : len(curve)]
        np.testing.assert_allclose(covariance, by_distance(products), rtol=1e-5, atol=1e-7)
        assert np.isnan(found.correlation[place, len(curve) :]).all()
        deviations = [one.std((2, 3), ddof=1).mean(1) for one in maps]
        expected = np.mean(np.concatenate(deviations))
        assert found.data_uncertainty[place] == pytest.approx(expected, rel=1e-9)


def test_five_convolutions_on_noise_reach_ten_points():
    """Points further apart see different pixels: what is left is the noise of finite images."""
    subject = deep(5, size=(27, 27), images=512)
    found = retinoscope.measure(Consistency("noise"), subject)
    one, five = found.correlation[0], found.correlation[-1]
    assert found.floor == pytest.approx(np.sqrt(2 / np.pi / (512 - 8)))
    assert one[:3].min() > 3 * found.floor
    assert five[:6].min() > 2 * found.floor, "nothing would be shown"
    assert (one[3:] < 1.5 * found.floor).all()
    assert (five[11:] < 1.5 * found.floor).all()
    assert (np.diff(found.length) > 0).all()
    assert found.falls.all()
    assert found.findings()[0].startswith("points vary together over 1.")


def test_noise_is_the_same_for_any_data_and_has_the_moments_it_says():
    probe = Consistency("noise", seed=3)
    subject = deep(1, size=(16, 16), images=40)
    images = images_of(subject, probe, 40)
    # 30,720 numbers: a standard error of 0.25/√30720 = 0.0014 for the mean, less for the deviation.
    assert images.mean().item() == pytest.approx(0.5, abs=0.007)
    assert images.std().item() == pytest.approx(0.25, abs=0.005)
    assert images.min() < 0
    assert images.max() > 1
    assert not torch.equal(images, images_of(subject, Consistency("noise"), 40))
    view = GaussianImages(seed=3)
    dark = np.zeros((2, 2, 3), np.float32)
    seen = [view.see(x, 7, np.random.default_rng(0)) for x in (dark, dark + 1)]
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert seen[0][1] == 7


def test_batch_size_and_order_of_partials_change_nothing():
    subject = small("vit", "float32")
    found = [
        retinoscope.measure(Consistency(group=4), replace(subject, batch=batch))
        for batch in (64, 3, 1)
    ]
    for other in found[1:]:
        for key, array in found[0].arrays().items():
            np.testing.assert_allclose(other.arrays()[key], array, rtol=2e-5, atol=2e-6)


def test_scale_and_offset_of_a_state_change_no_correlation():
    plain = deep(2, size=(16, 16), images=20)
    base = retinoscope.measure(Consistency(), plain)
    with torch.no_grad():
        model = Deep(2)
        model.load_state_dict(plain.backbone.state_dict())
        model.layers[1].weight *= 4
        model.layers[1].bias *= 4
    scaled = load_subject(model.eval(), "cues", name="deep", size=(16, 16), images=20)
    found = retinoscope.measure(Consistency(), scaled)
    np.testing.assert_allclose(found.correlation, base.correlation, atol=1e-6)
    np.testing.assert_allclose(found.covariance[1], 16 * base.covariance[1], rtol=1e-5, atol=1e-8)
    assert found.data_uncertainty[1] == pytest.approx(4 * base.data_uncertainty[1], rel=1e-5)


def test_maps_of_the_last_unit_of_each_stage():
    found = retinoscope.measure(Consistency(group=6), small("cnn"))
    stages = dict(zip(found.stages, found.units, strict=True))
    assert found.captions == tuple(u for stage, u in stages.items() if stage is not None)
    assert len(found.captions) > 2
    assert found.maps.shape == (len(found.captions), 8, 8)
    assert np.nanmax(np.abs(found.maps)) == pytest.approx(1)
    assert found.maps[0, 4, 4] == pytest.approx(1)
    assert (found.maps[-1, 4:, 4:] == 1).all()  # one of 2 × 2 points, repeated


class Still(nn.Module):
    """A network whose second unit does not depend on the image at the centre."""

    def __init__(self, mask):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.third, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 10)
        self.register_buffer("mask", mask)

    def forward(self, x):
        x = self.third(self.second(self.first(x)) * self.mask)
        return self.head(x.mean((2, 3)))


def test_a_centre_that_does_not_vary_is_skipped_with_the_reason():
    mask = torch.ones(8, 8)
    mask[4, 4] = 0
    subject = load_subject(Still(mask).eval(), "cues", size=(8, 8), images=5)
    found = retinoscope.measure(Consistency(), subject)
    assert "its centre point is the same for all images" in dict(found.skipped).values()
    assert np.isfinite(found.length).all()


def test_what_cannot_be_compared():
    one = deep(1, size=(16, 16), images=1)
    with pytest.raises(NotApplicable, match=r"needs at least 2 in a group .*--images"):
        retinoscope.measure(Consistency(), one)
    with pytest.raises(WrongSetting, match="group is 2 or more; got 1"):
        Consistency(group=1)
    with pytest.raises(WrongSetting, match="images is one of data, noise; got 'photos'"):
        Consistency("photos")
