import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.running import Mean


def test_known_answer():
    mean = Mean.of(np.array([[1.0, 10.0], [3.0, 10.0]]))
    np.testing.assert_array_equal(mean.value, [2.0, 10.0])
    np.testing.assert_array_equal(mean.error, [1.0, 0.0])  # deviation √2 over √2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_any_split_of_the_observations_gives_numpys_mean_and_error(sizes, seed):
    parts = [np.random.default_rng([seed, i]).normal(5, 2, (n, 3)) for i, n in enumerate(sizes)]
    rows = np.concatenate(parts)
    merged = Mean.merge(map(Mean.of, parts))
    assert merged.count == len(rows)
    if len(rows) > 1:
        # Sums of a hundred numbers of order ten in double precision.
        np.testing.assert_allclose(merged.value, rows.mean(0), rtol=1e-12)
        expected = rows.std(0, ddof=1) / np.sqrt(len(rows))
        np.testing.assert_allclose(merged.error, expected, rtol=1e-9)


def test_large_offset_does_not_eat_the_error():
    rows = np.array([[1e8 + 1], [1e8 + 3]])
    merged = Mean.of(rows[:1]) + Mean.of(rows[1:])
    assert merged.error == pytest.approx(1.0, rel=1e-6)


def test_one_observation_has_no_error_and_none_has_no_merge():
    assert np.isnan(Mean.of(np.ones((1, 2))).error).all()
    with pytest.raises(ValueError, match="nothing to merge"):
        Mean.merge([])


def test_arrays_and_back():
    mean = Mean.of(np.arange(6.0).reshape(3, 2))
    arrays = mean.to_arrays("unit/level")
    again = Mean.from_arrays(arrays, "unit/level")
    assert again.count == 3
    np.testing.assert_array_equal(again.squares, mean.squares)
    assert Mean.merge_arrays([arrays, {}, arrays], "unit/level").count == 6
