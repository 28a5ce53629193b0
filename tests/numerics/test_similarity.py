import numpy as np
import pytest
import torch

from retinoscope.numerics.contrast import block_contrast, jackknife_interval
from retinoscope.numerics.gram import Grams, bordered_gram
from retinoscope.numerics.ranks import rank_correlations, ranks
from retinoscope.numerics.similarity import (
    calibrated,
    cka,
    hsic,
    own_hsic,
    permuted_hsic,
    shared_neighbours,
    u_centred,
)


def naive_hsic(k, l):  # noqa: E741
    """The published formula (Nguyen et al., 2021), term by term."""
    k, l = (m * (1 - np.eye(len(m))) for m in (k, l))  # noqa: E741
    n, ones = len(k), np.ones(len(k))
    total = np.trace(k @ l)
    total += (ones @ k @ ones) * (ones @ l @ ones) / ((n - 1) * (n - 2))
    total -= 2 * (ones @ k @ l @ ones) / (n - 2)
    return total / (n * (n - 3))


def naive_cka(batches_x, batches_y):
    def mean(a, b):
        return np.mean([naive_hsic(x @ x.T, y @ y.T) for x, y in zip(a, b, strict=True)])

    both = mean(batches_x, batches_y)
    return both / np.sqrt(mean(batches_x, batches_x) * mean(batches_y, batches_y))


def grams(*features):
    return Grams.of(np.stack([bordered_gram(torch.as_tensor(x)).numpy() for x in features]))


def our_cka(batches_x, batches_y):
    both, mine, theirs = [], [], []
    for x, y in zip(batches_x, batches_y, strict=True):
        one, other = (u_centred(grams(z).kernel()) for z in (x, y))
        both.append(hsic(one, other)), mine.append(own_hsic(one)), theirs.append(own_hsic(other))
    return cka(*(np.mean(values, axis=0) for values in (both, mine, theirs)))[0, 0]


@pytest.fixture
def random():
    return np.random.default_rng(0)


def related(random, images, width, other):
    x = random.normal(size=(images, width)) + 3
    return x, np.tanh(x @ random.normal(size=(width, other))) + random.normal(size=(images, other))


def test_equals_the_published_formula_over_unequal_batches(random):
    pairs = [related(random, images, 7, 11) for images in (64, 17, 4, 33)]
    x, y = zip(*pairs, strict=True)
    assert our_cka(x, y) == pytest.approx(naive_cka(x, y), abs=1e-10)
    single = our_cka([a.astype(np.float32) for a in x], [b.astype(np.float32) for b in y])
    assert single == pytest.approx(naive_cka(x, y), abs=1e-5)


def test_float32_features_far_from_zero_keep_their_digits(random):
    """The twin needs centred features: by the formula, sums of 1e20 cancel even in float64."""
    x, y = related(random, 64, 300, 200)
    x, y = (x + 1000).astype(np.float32), (y - 500).astype(np.float32)
    exact = naive_cka(*([z - z.mean(0)] for z in (x.astype(float), y.astype(float))))
    assert our_cka([x], [y]) == pytest.approx(exact, abs=1e-5)


def test_rotation_scale_and_shift_change_nothing_and_give_1(random):
    x = random.normal(size=(40, 12))
    turn = np.linalg.qr(random.normal(size=(12, 12)))[0]
    assert our_cka([x], [x]) == pytest.approx(1, abs=1e-12)
    assert our_cka([x], [1e3 * x @ turn + 5]) == pytest.approx(1, abs=1e-9)
    _, y = related(random, 40, 12, 5)
    before = our_cka([x], [y])
    for scale in (1e-3, 0.1, 1e3):
        assert our_cka([scale * x], [y]) == pytest.approx(before, abs=1e-10)
        small = (scale * x).astype(np.float32)
        assert our_cka([small], [small]) == pytest.approx(1, abs=1e-6)


def test_independent_features_are_near_0_whatever_their_width(random):
    """A biased estimate is far from 0 if the features are wider than the group."""
    for width in (16, 500, 4096):
        x, y = random.normal(size=(2, 8, 32, width))
        assert abs(our_cka(list(x), list(y))) < 0.04, width


@pytest.mark.parametrize("images", [5, 127, 130, 257])
def test_products_of_many_images_are_those_of_few(random, images):
    features = torch.as_tensor(random.normal(size=(images, 40)) + 2)
    centred = features - features.mean(0)
    whole = torch.cat([centred, features.mean(0)[None], torch.ones(1, 40)])
    torch.testing.assert_close(bordered_gram(features), whole @ whole.T)


def test_the_order_of_images_within_a_group_changes_nothing(random):
    x, y = related(random, 30, 6, 9)
    order = random.permutation(30)
    assert our_cka([x[order]], [y[order]]) == pytest.approx(our_cka([x], [y]), abs=1e-12)


def test_hsic_with_itself_is_never_negative(random):
    for _ in range(50):
        x = random.normal(size=(4, 3))
        assert own_hsic(u_centred(grams(x).kernel()))[0] >= 0


def test_fewer_than_four_images_are_refused():
    with pytest.raises(ValueError, match="at least 4 images; got 3"):
        u_centred(np.eye(3)[None])


def test_constant_features_are_noticed_in_single_precision(random):
    same = np.repeat(random.normal(size=(1, 5000)), 8, 0).astype(np.float32)
    nearly = (same + 1e-3 * random.normal(size=same.shape)).astype(np.float32)
    assert grams(same).constant.tolist() == [True]
    assert grams(nearly).constant.tolist() == [False]


def test_gaussian_kernel_by_hand(random):
    x = random.normal(size=(6, 3))
    squares = ((x[:, None] - x[None]) ** 2).sum(2)
    median = np.median(squares[np.triu_indices(6, 1)])
    expected = np.exp(-squares / (2 * 0.7**2 * median))
    np.testing.assert_allclose(grams(x).kernel(0.7)[0], expected, atol=1e-12)


def test_neighbours_by_hand(random):
    x, y = random.normal(size=(2, 20, 6))
    near = []
    for z in (x, y):
        z = z - z.mean(0)
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        cosine = z @ z.T - 9 * np.eye(20)
        near.append([set(np.argsort(-row)[:5].tolist()) for row in cosine])
    expected = np.mean([len(a & b) / 5 for a, b in zip(*near, strict=True)])
    both = grams(x, np.pad(y, ((0, 0), (0, 0)))).neighbours(5)
    assert shared_neighbours(both[:1], both[1:], 5)[0, 0] == pytest.approx(expected, abs=1e-12)
    assert shared_neighbours(both, both, 5)[0, 0] == 1


def test_dissimilarities_are_those_of_numpy(random):
    x = random.normal(size=(9, 30)) + 4 * random.normal(size=(9, 1)) + 2
    expected = (1 - np.corrcoef(x))[np.triu_indices(9, 1)]
    np.testing.assert_allclose(grams(x).dissimilarities()[0], expected, atol=1e-12)


def test_rank_correlation_is_that_of_scipy(random):
    from scipy.stats import rankdata, spearmanr

    x, y = random.normal(size=(3, 40)), random.integers(0, 6, size=(2, 40)).astype(float)
    expected = [[spearmanr(a, b).statistic for b in y] for a in x]
    np.testing.assert_allclose(rank_correlations(x, y), expected, atol=1e-12)
    for row in (*x, *y):
        np.testing.assert_array_equal(ranks(row), rankdata(row) - 1)


@pytest.mark.parametrize("width", [16, 256, 4096])
def test_calibration_gives_independent_features_0(width):
    """Five percent may lie above the level; over 60 draws at most 8 do, but for 1 in 1,000."""
    random, above = np.random.default_rng(width), 0
    for _ in range(60):
        x, y = random.normal(size=(2, 24, width))
        one, other = (u_centred(grams(z).kernel()) for z in (x, y))
        norm = np.sqrt(own_hsic(one)[0] * own_hsic(other)[0])
        orders = random.permuted(np.tile(np.arange(24), (200, 1)), axis=1)
        level = np.quantile(permuted_hsic(one, other, orders)[:, 0, 0] / norm, 0.95)
        score = calibrated(hsic(one, other)[0, 0] / norm, level)
        assert 0 <= score < 0.3
        above += score > 0
    assert above <= 8


def test_permuting_is_permuting_the_images(random):
    x, y = related(random, 12, 5, 4)
    order = random.permutation(12)
    one, other, moved = (u_centred(grams(z).kernel()) for z in (x, y, y[order]))
    np.testing.assert_allclose(permuted_hsic(one, other, order[None])[0], hsic(one, moved))


def test_contrast_by_hand():
    similarity = np.array([[1, 0.8, 0.1, 9], [0.8, 1, 0.3, 9], [0.1, 0.3, 1, 9], [9, 9, 9, 9.0]])
    assert block_contrast(similarity, [1, 1, 2, None]) == pytest.approx(0.6)
    assert block_contrast(similarity, [1, 1, 1, None]) is None
    assert block_contrast(similarity, [1, 2, 3, None]) is None


def test_the_jackknife_of_a_mean_is_its_t_interval(random):
    from scipy.stats import t

    values = random.normal(size=9)
    _, (low, high) = jackknife_interval(lambda groups: values[groups].mean(), 9)
    reach = t.ppf(0.975, 8) * values.std(ddof=1) / 3
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=1e-3)
    assert jackknife_interval(lambda groups: 1.0, 1) == (1.0, None)
