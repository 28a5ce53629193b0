import numpy as np
import pytest

from retinoscope.numerics.eigenvalue_sample import (
    largest,
    mean_fields,
    negative_share,
    positive_mean,
    sample_densities,
    sample_facts,
    whole_density,
)

VALUES = np.random.default_rng(0).normal(1.0, 2.0, size=(12, 5))
HOLES = np.where(np.random.default_rng(1).random((12, 5)) < 0.2, np.nan, VALUES)


@pytest.mark.parametrize("values", [VALUES, HOLES])
def test_shares_and_means_are_those_of_a_plain_count(values):
    flat = [value for row in values.tolist() for value in row if value == value]
    above = [value for value in flat if value > 0]
    found = sample_facts(values, seed=0)
    assert found["nep"] == pytest.approx(sum(value < 0 for value in flat) / len(flat))
    assert found["ape"] == pytest.approx(sum(above) / len(above))
    for name in ("nep", "ape"):
        low, high = found[f"{name}_interval"]
        assert low < found[name] < high


def test_a_zero_is_neither_negative_nor_positive():
    values = np.array([[0.0, 2.0, -1.0, 0.0]])
    assert float(negative_share(values)) == 0.25
    assert float(positive_mean(values)) == 2.0


def test_without_a_positive_value_there_is_no_mean_of_them():
    found = sample_facts(-np.abs(VALUES), seed=0)
    assert (found["nep"], found["ape"], found["ape_interval"]) == (1.0, None, None)
    assert found["nep_interval"] == (1.0, 1.0)


def test_of_one_end_nothing_is_said():
    assert set(sample_facts(VALUES, seed=0, known=False).values()) == {None}


def test_of_both_ends_the_largest_are_those_of_largest_magnitude():
    spectrum = np.random.default_rng(2).normal(size=(4, 40))
    rising = np.sort(spectrum, axis=1)
    ends = np.concatenate([rising[:, ::-1][:, :5], rising[:, :5]], axis=1)
    expected = [sorted(row, key=abs, reverse=True)[:5] for row in spectrum.tolist()]
    np.testing.assert_array_equal(largest(ends, 5), expected)
    np.testing.assert_array_equal(largest(np.stack([ends, -ends]), 5)[1], -np.array(expected))


def test_the_order_of_mini_batches_changes_no_fact():
    """The intervals come from draws of places, so they move by as much as another seed does."""
    one, other = (sample_facts(values, seed=0) for values in (VALUES, VALUES[::-1]))
    assert (one["nep"], one["ape"]) == pytest.approx((other["nep"], other["ape"]))
    np.testing.assert_allclose(one["ape_interval"], other["ape_interval"], atol=0.1)


@pytest.mark.parametrize("values", [VALUES, HOLES])
def test_densities_integrate_to_the_shares(values):
    found = sample_densities(values)
    share = float(negative_share(values))
    for side, area in (("negative", share), ("positive", 1 - share)):
        # Four widths behind the last value: at most 6e-5 of a bell are lost.
        assert np.trapezoid(found[side], found[f"{side}_at"]) == pytest.approx(area, abs=1e-3)


def test_the_whole_density_is_the_mean_of_those_of_mini_batches():
    """Two mini-batches whose quadratures have one node each: half the mass is at either."""
    found = whole_density(np.array([[0.0], [10.0]]), np.array([[1.0], [1.0]]))
    density = np.where(np.isnan(found["spectrum"]), 0.0, 10.0 ** found["spectrum"])
    mass = density * np.diff(found["spectrum_at"])[0]
    assert mass[found["spectrum_at"] < 5].sum() == pytest.approx(0.5, abs=1e-6)
    assert mass.sum() == pytest.approx(1, abs=1e-6)


def test_means_have_their_standard_error_and_a_single_one_has_none():
    samples = np.array([1.0, 2.0, 3.0, 6.0])
    found = mean_fields("trace", samples)
    assert found == {"trace": 3.0, "trace_error": pytest.approx(samples.std(ddof=1) / 2)}
    assert mean_fields("trace", samples[:1]) == {"trace": 1.0, "trace_error": None}
    rows = mean_fields("unit", np.stack([samples, 3 * samples]))
    np.testing.assert_allclose(rows["unit"], 2 * samples)
    np.testing.assert_allclose(rows["unit_error"], samples)
    assert np.isnan(mean_fields("unit", samples[None])["unit_error"]).all()
