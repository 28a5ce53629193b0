import numpy as np
import pytest

from retinoscope.numerics.density import POINTS, one_sided_density, spectral_density

RANDOM = np.random.default_rng(0)
SAMPLES = {
    "even": RANDOM.uniform(1, 5, 80),
    "near zero": RANDOM.exponential(0.01, 50),
    "heavy tail": RANDOM.lognormal(0, 2, 160),
    "outlier": np.array([1, 1.01, 1.02, 1.03, 1000.0]),
    "one": np.array([7.0]),
    "equal": np.full(6, 1e-6),
    "equal but for rounding": np.array([1.0, np.nextafter(1, 2)]),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("sign", [1, -1])
def test_one_side_integrates_to_its_share(name, sign):
    """The axis ends four widths behind the last value: at most 6e-5 of one bell is lost."""
    values = sign * SAMPLES[name]
    at, density = one_sided_density(values, 2 * len(values))
    assert np.trapezoid(density, at) == pytest.approx(0.5, abs=1e-4)
    assert len(at) == POINTS
    assert (density >= 0).all()
    assert (np.diff(at) > 0).all()
    assert (at if sign > 0 else -at).min() == 0


def test_of_one_value_it_is_a_bell_around_it():
    at, density = one_sided_density(np.array([5.0]), 1)
    assert at[density.argmax()] == pytest.approx(5, abs=at[1])
    width = 0.5  # a tenth, for want of a spread
    bell = np.exp(-((at - 5) ** 2) / (2 * width**2)) / (width * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(density, bell, atol=1e-12)


def test_agrees_with_the_kernel_estimate_of_the_values_and_their_mirror_images():
    peer = pytest.importorskip("scipy.stats").gaussian_kde
    values = SAMPLES["even"]
    at, density = one_sided_density(values, len(values))
    quartiles = np.quantile(values, [0.25, 0.75])
    width = 0.9 * min(values.std(ddof=1), np.diff(quartiles)[0] / 1.34) * len(values) ** -0.2
    both = np.concatenate([values, -values])
    estimate = peer(both, bw_method=width / both.std(ddof=1))(at)
    np.testing.assert_allclose(density, 2 * estimate, rtol=1e-9)


def test_nothing_leaks_to_the_other_side():
    """Values that crowd at 0 have their greatest density there, not half of it."""
    values = RANDOM.exponential(1.0, 4000)
    _, density = one_sided_density(values, 4000)
    assert density[0] == pytest.approx(1, rel=0.15)


def test_no_values_no_curve():
    at, density = one_sided_density(np.empty(0), 10)
    assert at.shape == density.shape == (0,)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_other_sign_gives_the_mirrored_curve(name):
    at, density = one_sided_density(SAMPLES[name], 9)
    mirrored_at, mirrored = one_sided_density(-SAMPLES[name], 9)
    np.testing.assert_array_equal(mirrored_at, -at[::-1])
    np.testing.assert_array_equal(mirrored, density[::-1])


@pytest.mark.parametrize("factor", [1e-6, 1e3])
def test_both_densities_scale_with_their_values(factor):
    values = SAMPLES["even"]
    at, density = one_sided_density(values, 100)
    wide_at, wide = one_sided_density(factor * values, 100)
    np.testing.assert_allclose(wide_at, factor * at)
    np.testing.assert_allclose(wide * factor, density, rtol=1e-9)
    for nodes in (np.array([-1.0, 2, 2.5]), np.array([3.0])):
        weights = np.full(len(nodes), 1 / len(nodes))
        at, density = spectral_density(nodes, weights)
        wide_at, wide = spectral_density(factor * nodes, weights)
        np.testing.assert_allclose(wide_at, factor * at, atol=1e-12 * factor)
        np.testing.assert_allclose(wide * factor, density, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        ([0.0], [1.0]),
        ([-4.0], [1.0]),
        ([1e-5, 1e-5], [0.3, 0.7]),
        ([1.0, np.nextafter(1, 2)], [0.5, 0.5]),
        ([-3.0, 0.001, 0.0, 200.0], [0.1, 0.5, 0.3, 0.1]),
    ],
)
def test_a_spectrum_has_mass_one_and_the_moments_of_its_quadrature(nodes, weights):
    nodes, weights = np.array(nodes), np.array(weights)
    at, density = spectral_density(nodes, weights)
    cell = at[1] - at[0]
    mass = density * cell
    assert mass.sum() == pytest.approx(1, abs=1e-6)  # five widths: 6e-7 lies behind
    centre = weights @ nodes
    width = 0.01 * (np.ptp(nodes) if np.ptp(nodes) > 1e-9 else np.abs(nodes).max() or 1.0)
    assert mass @ at / mass.sum() == pytest.approx(centre, abs=1e-4 * width)
    # A bell has a variance of its own, and so has a cell; the tails that are cut off have little.
    spread = mass @ (at - centre) ** 2 - weights @ (nodes - centre) ** 2
    own = width**2 + cell**2 / 12
    assert spread == pytest.approx(own, rel=1e-3, abs=1e-6 * np.ptp(nodes) ** 2)


def test_narrow_peaks_are_not_lost_between_places():
    """Each place has the mean of its stretch: 0.1 % of the values far away still count."""
    nodes = np.array([0.0, 40.0, 100.0])
    at, density = spectral_density(nodes, np.array([0.989, 0.01, 0.001]))
    mass = density * (at[1] - at[0])
    for node, share in zip(nodes, (0.989, 0.01, 0.001), strict=True):
        assert mass[np.abs(at - node) < 6].sum() == pytest.approx(share, abs=1e-5)


def test_mirrored_nodes_give_the_mirrored_spectrum():
    nodes, weights = np.array([-1.0, 0.5, 3.0]), np.array([0.2, 0.5, 0.3])
    at, density = spectral_density(nodes, weights)
    mirrored_at, mirrored = spectral_density(-nodes, weights)
    np.testing.assert_allclose(mirrored_at, -at[::-1], atol=1e-12)
    np.testing.assert_allclose(mirrored, density[::-1], rtol=1e-6, atol=1e-12)
