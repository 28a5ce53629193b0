import numpy as np
import pytest

from retinoscope.numerics.bootstrap import Resampled, bootstrap_interval, resampled_means


def mean(samples):
    return samples.mean((1, 2))


def test_what_is_constant_is_certain():
    assert bootstrap_interval(np.full((5, 2), 3.5), mean) == (3.5, 3.5)


def test_one_group_alone_says_nothing_of_others():
    assert bootstrap_interval(np.arange(4.0)[None], mean) is None


def test_of_two_groups_the_interval_is_both():
    """A quarter of the samples is one of them alone, a quarter the other."""
    assert bootstrap_interval(np.array([[0.0], [1.0]]), mean) == (0, 1)
    assert bootstrap_interval(np.array([[0.0], [1.0]]), mean, share=0.4) == (0.5, 0.5)


def test_agrees_with_scipy():
    peer = pytest.importorskip("scipy.stats").bootstrap
    values = np.random.default_rng(2).exponential(size=(40, 1))
    found = bootstrap_interval(values, mean)
    theirs = peer((values[:, 0],), np.mean, method="percentile", n_resamples=2000, rng=1)
    # Both are draws: an end moves by about 0.01 from seed to seed.
    assert found == pytest.approx(tuple(theirs.confidence_interval), abs=0.04)


def test_holds_the_mean_of_gaussians_as_often_as_it_says():
    """Of 30 groups a percentile interval holds about 93.5 %, that of Student's t 95 %."""
    random = np.random.default_rng(0)
    held = 0
    for trial in range(300):
        low, high = bootstrap_interval(random.normal(size=(30, 1)), mean, seed=trial)
        held += low <= 0 <= high
    # A standard error of 300 trials is 1.3 %.
    assert 0.90 <= held / 300 <= 0.985


def test_what_is_alike_within_a_group_counts_once():
    """Copies add nothing: the interval is that of one value per group, and wider than of all."""
    random = np.random.default_rng(1)
    single = random.normal(size=(20, 1))
    copies = np.repeat(single, 8, axis=1)
    assert bootstrap_interval(copies, mean) == pytest.approx(bootstrap_interval(single, mean))
    apart = copies.reshape(160, 1)
    wide, narrow = (np.diff(bootstrap_interval(v, mean))[0] for v in (copies, apart))
    assert wide / narrow == pytest.approx(np.sqrt(8), rel=0.1)


def test_samples_without_a_value_are_left_out():
    def positive_mean(samples):
        above = samples > 0
        with np.errstate(invalid="ignore"):
            return np.where(above, samples, 0).sum((1, 2)) / above.sum((1, 2))

    groups = np.array([[-1.0, -2.0], [5.0, 5.0]])
    assert bootstrap_interval(groups, positive_mean) == (5, 5)
    assert bootstrap_interval(groups[:1], positive_mean) is None


def test_seeds_repeat_and_order_and_scale_do_what_they_should():
    values = np.random.default_rng(3).normal(size=(25, 3))
    found = bootstrap_interval(values, mean, seed=4)
    assert bootstrap_interval(values, mean, seed=4) == found
    assert bootstrap_interval(values, mean, seed=5) != found
    np.testing.assert_allclose(bootstrap_interval(2 * values + 1, mean, seed=4),
                               2 * np.array(found) + 1)  # fmt: skip
    narrow = bootstrap_interval(values, mean, share=0.5, seed=4)
    assert found[0] < narrow[0] < narrow[1] < found[1]


def test_resampled_means_equal_a_loop_with_the_same_counts(monkeypatch):
    """Also when the samples are drawn in parts, as for many images."""
    rows = np.random.default_rng(1).normal(size=(11, 3))
    found = resampled_means(rows, 200, seed=5)
    random = np.random.default_rng(5)
    for sample in found:
        np.testing.assert_allclose(sample, rows[random.integers(11, size=11)].mean(0), rtol=1e-12)
    monkeypatch.setattr("retinoscope.numerics.bootstrap._ENTRIES", 30)
    np.testing.assert_allclose(resampled_means(rows, 200, seed=5), found, rtol=1e-12)


def test_resampled_intervals_are_quantiles_and_differences_are_paired():
    rows = np.random.default_rng(2).normal(size=(40, 2, 3))
    rows[:, 1] = rows[:, 0] + 0.25
    means = Resampled.of(rows, 500, seed=1)
    np.testing.assert_allclose(means.values, rows.mean(0))
    ends = np.sort(means.samples[:, 0, 2])  # 500 samples: the quantiles lie between two of them
    low, high = means.interval[0, 2]
    assert ends[12] <= low <= ends[13]
    assert ends[486] <= high <= ends[487]
    np.testing.assert_allclose((means[1] - means[0]).interval, 0.25)
    np.testing.assert_allclose(means[0].mean().values, rows[:, 0].mean())
    np.testing.assert_allclose(means[0][[0, 2]].error, means.error[0, [0, 2]])


def test_columns_that_are_not_finite_spoil_no_others():
    rows = np.random.default_rng(2).normal(size=(9, 3))
    rows[4, 1] = np.inf
    means, plain = Resampled.of(rows, 100), Resampled.of(rows[:, [0, 2]], 100)
    assert np.isnan(means.values[1])
    assert np.isnan(means.interval[1]).all()
    np.testing.assert_array_equal(means.samples[:, [0, 2]], plain.samples)


def test_intervals_hold_a_change_of_accuracy_as_often_as_they_say():
    """Of 200 images, 20 % lose and 5 % win: the true change is −0.15."""
    random = np.random.default_rng(0)
    rows = random.choice([-1.0, 0.0, 1.0], p=[0.2, 0.75, 0.05], size=(200, 400))
    low, high = Resampled.of(rows, 1000).interval.T
    held = ((low <= -0.15) & (high >= -0.15)).mean()
    assert held == pytest.approx(0.95, abs=0.035)  # three standard errors of 400 trials
