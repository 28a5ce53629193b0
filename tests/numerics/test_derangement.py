import numpy as np
import pytest

from retinoscope.numerics.derangement import derangement


@pytest.mark.parametrize("count", [2, 3, 64])
def test_nothing_stays_and_nothing_is_lost(count):
    for seed in range(50):
        order = derangement(count, (seed, 7))
        assert (order != np.arange(count)).all()
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_every_image_is_as_likely_to_replace_another():
    drawn = np.array([derangement(4, seed) for seed in range(3000)])
    shares = np.array([[(drawn[:, i] == j).mean() for j in range(4)] for i in range(4)])
    np.testing.assert_allclose(shares, (1 - np.eye(4)) / 3, atol=0.04)  # 4 standard errors


def test_one_alone_cannot():
    with pytest.raises(ValueError, match="Only 2 or more things can all change places; got 1"):
        derangement(1, 0)
