import numpy as np
import pytest

from retinoscope.numerics.ranks import ranks, spearman


def test_agrees_with_scipy_with_and_without_ties():
    peer = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 9)), random.integers(4, size=(20, 9)).astype(float)
    np.testing.assert_allclose(ranks(y) + 1, peer.rankdata(y, axis=-1))
    expected = [peer.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(spearman(x, y), expected, rtol=1e-12)


def test_known_values_and_what_is_constant():
    up = np.arange(5.0)
    assert spearman(up, up**3) == pytest.approx(1)
    assert spearman(up, -np.exp(up)) == pytest.approx(-1)
    assert np.isnan(spearman(up, np.ones(5)))
