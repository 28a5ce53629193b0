import numpy as np
import pytest
import torch

from retinoscope.numerics.krylov import Lanczos

TRAP = (10, -9.9, 5, -5, 3, -2)
"""Pairs of nearly or exactly opposite values: power iteration takes one of each for the other."""


def rotated(values, seed=0, dtype=torch.float64):
    draw = np.random.default_rng(seed).normal(size=(len(values), len(values)))
    basis, _ = np.linalg.qr(draw)
    return torch.from_numpy((basis * np.asarray(values, dtype=float)) @ basis.T).to(dtype)


def symmetric(size, seed=0):
    random = np.random.default_rng(seed).normal(size=(size, size))
    return torch.from_numpy(random + random.T)


def search(matrix, seed=0, **settings):
    return Lanczos(**settings)(lambda v: matrix @ v, torch.zeros_like(matrix[0]), seed)


def expected(matrix, k, which, shift=0.0):
    rising = np.linalg.eigvalsh(matrix.double().numpy())
    if which == "magnitude":
        return rising[np.argsort(-np.abs(rising + shift), kind="stable")][:k]
    ends = {"positive": rising[::-1][:k], "negative": rising[:k]}
    return ends[which] if which in ends else np.concatenate([ends["positive"], ends["negative"]])


def true_residuals(matrix, found):
    images = found.vectors.double() @ matrix.double()
    return (images - torch.from_numpy(found.values)[:, None] * found.vectors).norm(dim=1).numpy()


@pytest.mark.parametrize("seed", range(100))
def test_opposite_values_of_the_same_size_are_told_apart(seed):
    found = search(rotated(TRAP, seed), seed, k=5)
    np.testing.assert_allclose(np.sort(found.values), [-9.9, -5, 3, 5, 10], rtol=1e-9)
    np.testing.assert_allclose(found.values[[0, 1, 4]], [10, -9.9, 3], rtol=1e-9)
    assert found.converged.all()


@pytest.mark.parametrize("which", ["magnitude", "positive", "negative", "both"])
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_a_dense_solver(which, seed):
    """The tolerance is tight: a loose one may end before a value is met that the start lacks."""
    matrix = symmetric(60, seed)
    found = search(matrix, seed, k=4, which=which, tolerance=1e-7)
    np.testing.assert_allclose(found.values, expected(matrix, 4, which), rtol=1e-7)
    assert found.converged.all()
    assert found.products <= 60
    overlaps = found.vectors @ found.vectors.T
    torch.testing.assert_close(overlaps, torch.eye(len(overlaps)).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("products", [6, 12, 40])
def test_residuals_are_true(products):
    """Whether found or not; the orders of rounding differ by 1e-13 of a norm of 20."""
    matrix = symmetric(80)
    found = search(matrix, k=3, products=products)
    np.testing.assert_allclose(found.residuals, true_residuals(matrix, found), atol=1e-11)


def test_values_are_as_near_as_their_residuals_say():
    matrix = symmetric(80)
    found = search(matrix, k=3, products=9)
    every = np.linalg.eigvalsh(matrix.numpy())
    distances = np.abs(every[:, None] - found.values).min(0)
    assert (found.residuals > 0.1).any()
    assert (distances <= found.residuals + 1e-12).all()


@pytest.mark.parametrize("which", ["magnitude", "both"])
def test_restarts_change_nothing_but_the_number_of_products(which):
    matrix = symmetric(150, 3)
    settings = {"k": 3, "which": which, "tolerance": 1e-8, "products": 600}
    once, often = (search(matrix, 1, basis=basis, **settings) for basis in (None, 1))
    assert often.products > 24  # as many vectors as a basis has at least: it was restarted
    np.testing.assert_allclose(often.values, once.values, rtol=1e-7)
    np.testing.assert_allclose(often.values, expected(matrix, 3, which), rtol=1e-7)
    np.testing.assert_allclose(often.residuals, true_residuals(matrix, often), atol=1e-10)
    assert often.weights.sum() == pytest.approx(1)
    torch.testing.assert_close(often.image, matrix @ often.start)


@pytest.mark.parametrize("seed", range(5))
def test_copies_of_the_two_largest_values_are_all_found(seed):
    """As in a head that starts at zero: there each value comes once for every further class."""
    matrix = rotated([10] * 9 + [9] * 9 + list(np.linspace(-1, 1, 62)), seed)
    found = search(matrix, seed, k=5, products=150)
    np.testing.assert_allclose(found.values, 10, rtol=1e-3)
    assert found.converged.all()
    found = search(matrix, seed, k=12, products=600)
    np.testing.assert_allclose(found.values, [10] * 9 + [9] * 3, rtol=1e-3)


def test_copies_at_both_ends_are_found():
    matrix = rotated([10] * 4 + [-8] * 5 + list(np.linspace(-3, 3, 91)))
    found = search(matrix, k=3, which="both", products=200)
    np.testing.assert_allclose(found.values, [10] * 3 + [-8] * 3, rtol=1e-3)


def test_copies_have_vectors_of_their_own_and_true_residuals():
    matrix = rotated([7] * 6 + [0] * 14)
    found = search(matrix, k=5)
    np.testing.assert_allclose(found.values, 7, rtol=1e-12)
    overlaps = found.vectors @ found.vectors.T
    torch.testing.assert_close(overlaps, torch.eye(5).double(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(true_residuals(matrix, found), 0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_values_and_many_zeros(dtype):
    matrix = rotated([3, -2] + [0] * 98, dtype=dtype)
    found = search(matrix, k=5)
    # Single precision has eps 1e-7; the products of a 100 × 100 matrix add some of them up.
    np.testing.assert_allclose(found.values, [3, -2, 0, 0, 0], atol=1e-5)
    assert found.converged.all()
    # Six make the space, which the matrix maps into itself; beside it rounding is not searched.
    assert found.products < 12


@pytest.mark.parametrize("which", ["magnitude", "positive", "both"])
@pytest.mark.parametrize("values", [[0.0], [2.5], [0.0] * 4, [1.0] * 5, [1.0, -1.0] * 3,
                                    [3.0, 3, 3, 2, 2, 2, 1], [1.0] + [0.0] * 6])  # fmt: skip
def test_small_and_simple_matrices(values, which):
    """Every number of copies, up to as many as there are dimensions and beyond."""
    matrix = rotated(values)
    for k in range(1, len(values) + 2):
        found = search(matrix, k=k, which=which)
        assert found.converged.all()
        wanted = expected(matrix, k, which)
        if which == "both":  # where the ends meet, nothing counts twice
            wanted = wanted if 2 * k <= len(values) else np.asarray(values)
            assert set(found.values.round(6)) == set(wanted.round(6))
            continue
        np.testing.assert_allclose(np.sort(np.abs(found.values)), np.sort(np.abs(wanted)),
                                   atol=1e-9)  # fmt: skip


def test_as_many_as_there_are():
    matrix = symmetric(12)
    found = search(matrix, k=12, which="positive")
    np.testing.assert_allclose(found.values, expected(matrix, 12, "positive"), rtol=1e-9)
    assert found.products == 12


def test_a_shift_changes_which_are_largest_and_nothing_else():
    matrix = symmetric(40)
    rising = np.linalg.eigvalsh(matrix.numpy())
    for shift in (0.0, 8.0, -8.0):
        found = search(matrix, k=3, shift=shift, tolerance=1e-9)
        np.testing.assert_allclose(found.values, expected(matrix, 3, "magnitude", shift), rtol=1e-8)
    assert (expected(matrix, 3, "magnitude", 8.0) == rising[::-1][:3]).all()
    assert (expected(matrix, 3, "magnitude", -8.0) == rising[:3]).all()
    ends = [search(matrix, k=3, which="both", shift=shift) for shift in (0.0, 8.0)]
    np.testing.assert_allclose(ends[0].values, ends[1].values, rtol=1e-3)


def test_the_quadrature_has_the_moments_of_the_start():
    """With m nodes, of up to 2m − 1; the first vector says how much of each value there is."""
    matrix = symmetric(50)
    found = search(matrix, k=2, products=6)
    start = found.start
    assert start.norm() == pytest.approx(1)
    torch.testing.assert_close(found.image, matrix @ start)
    assert found.weights.sum() == pytest.approx(1)
    assert len(found.nodes) == 6
    moment = start
    for power in range(1, 12):
        moment = matrix @ moment
        estimate = (found.weights * found.nodes**power).sum()
        # The highest power is of the order of 20¹¹, and odd ones cancel.
        assert estimate == pytest.approx(float(start @ moment), rel=1e-9, abs=1e-11 * 20**power)
    assert (found.weights * found.nodes**2).sum() == pytest.approx(float(found.image.norm() ** 2))


def test_the_mean_quadrature_is_the_trace():
    matrix = symmetric(20)
    found = [search(matrix, seed, k=1, products=1) for seed in range(300)]
    means = [(f.weights * f.nodes).sum() for f in found]
    trace = float(matrix.trace()) / 20
    assert abs(np.mean(means) - trace) < 4 * np.std(means) / np.sqrt(300)  # four standard errors


def test_steps_are_taken_for_a_finer_quadrature():
    matrix = symmetric(50)
    found = search(matrix, k=1, tolerance=0.1, steps=30)
    assert found.products == len(found.nodes) == 30
    assert search(matrix, k=1, tolerance=0.1).products < 30


def test_running_out_of_products_is_told():
    matrix = symmetric(200)
    found = search(matrix, k=5, products=8)
    assert found.products == 8
    assert not found.converged.all()
    worst = expected(matrix, 5, "magnitude")[~found.converged]
    assert (np.abs(found.values[~found.converged] - worst) > 1e-3 * np.abs(worst)).any()
    # Asking for less of each than for all: the first is found long before the last.
    assert search(matrix, k=5, products=40).converged[0]


@pytest.mark.parametrize("which", ["magnitude", "both"])
def test_single_precision(which):
    values = [50, -45, 20, 10, -8, *np.linspace(-1, 1, 115)]
    matrix = rotated(values, dtype=torch.float32)
    found = search(matrix, k=3, which=which, tolerance=1e-5)
    assert found.vectors.dtype == torch.float32
    # 64 · eps · 50 is 4e-4: what the search itself takes for rounding.
    np.testing.assert_allclose(found.values, expected(matrix, 3, which), atol=4e-4)
    np.testing.assert_allclose(found.residuals, true_residuals(matrix, found), atol=4e-4)
    assert found.converged.all()


def test_the_same_seed_gives_the_same_bits_and_another_the_same_values():
    matrix = symmetric(60)
    one, two, other = (search(matrix, seed, k=4, tolerance=1e-9) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.values, two.values)
    assert torch.equal(one.vectors, two.vectors)
    assert torch.equal(one.start, two.start)
    assert not torch.equal(one.start, other.start)
    np.testing.assert_allclose(one.values, other.values, rtol=1e-8)


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    search(rotated([1.0] * 10), k=2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("factor", [1e-12, -1.0, 1e9])
def test_scaling_the_matrix_scales_the_values(factor):
    matrix = symmetric(60)
    one, other = (search(m, k=4) for m in (matrix, factor * matrix))
    np.testing.assert_allclose(other.values, factor * one.values, rtol=1e-9)
    np.testing.assert_allclose(other.residuals, abs(factor) * one.residuals, rtol=1e-4)
    assert one.products == other.products


def test_a_rotation_changes_no_value():
    values = np.random.default_rng(0).normal(size=50)
    one, other = (search(rotated(values, seed), k=4, tolerance=1e-9) for seed in (1, 2))
    np.testing.assert_allclose(one.values, other.values, rtol=1e-8)


CLUSTER = [*np.linspace(10, 9.94, 7), 5, *np.random.default_rng(0).normal(size=80) / 10]
"""Seven values within a tolerance of each other: some of them are met late."""


def test_what_lies_between_close_values_is_looked_for():
    wanted = CLUSTER[:5]
    for seed in range(20):
        found = search(rotated(CLUSTER, seed), seed, k=5)
        np.testing.assert_allclose(found.values, wanted, rtol=1e-3)  # the tolerance


def test_another_search_finds_what_the_first_start_has_nothing_of():
    """Once in hundreds of starts a value is missed, and so are pairs; never by looking again."""
    values = [100, 50, -40, 30, 20, -15, 12, *np.random.default_rng(0).normal(size=60) / 10]
    pairs = [10, 10, 9, 9, 8, 8, 7, *np.random.default_rng(0).normal(size=60) / 10]
    matrix, twice = rotated(values), rotated(pairs)
    missed = torch.from_numpy(np.linalg.eigh(matrix.numpy())[1][:, _place(matrix, 20)])
    start = torch.randn(len(values), generator=torch.Generator().manual_seed(1)).double()
    start -= (start @ missed) * missed
    draws = torch.Generator().manual_seed(0)
    nothing = matrix.new_empty(0, len(start))
    blind = Lanczos(k=5)._search(lambda v: matrix @ v, start, nothing, draws)
    assert blind.converged.all()
    assert 20 not in blind.values.round(6)  # this is what it is about
    for seed in range(20):
        found = search(matrix, seed, k=5, again=True)
        np.testing.assert_allclose(found.values, [100, 50, -40, 30, 20], rtol=1e-3)
        found = search(twice, seed, k=5, again=True)
        np.testing.assert_allclose(found.values, pairs[:5], rtol=1e-3)
    assert search(matrix, k=5).products < search(matrix, k=5, again=True).products < 30


def _place(matrix, value):
    return int(np.abs(np.linalg.eigvalsh(matrix.numpy()) - value).argmin())


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
def test_residuals_are_true_beside_what_was_found_too(tolerance):
    values = np.repeat([1000, 990, 980, 970, 960], 6).tolist() + list(np.linspace(-5, 5, 60))
    for seed in range(5):
        matrix = rotated(values, seed)
        found = search(matrix, seed, k=12, tolerance=tolerance, products=400)
        true = true_residuals(matrix, found)
        np.testing.assert_allclose(found.residuals, true, atol=1e-8)
        assert (true[found.converged] <= tolerance * 1000).all()


@pytest.mark.parametrize("scale", [1e-24, 1e22])
def test_single_precision_of_any_size(scale):
    """Squares of these numbers are out of its reach."""
    matrix = rotated([5, 4, 3, 2, 1, *np.linspace(-0.1, 0.1, 95)], dtype=torch.float32)
    found = search(matrix * scale, k=4)
    np.testing.assert_allclose(found.values / scale, [5, 4, 3, 2], rtol=1e-3)


def test_what_rounding_explains_is_zero():
    found = search(rotated([3, 2, 1] + [0] * 60, dtype=torch.float32), k=6)
    assert (found.values[3:] == 0).all()
    assert (found.values[:3] > 0.9).all()


def test_the_spectrum_counts_each_value_found_as_one_of_all():
    """Its mean is the trace with far less chance than the start alone has."""
    matrix = rotated([100, -60, 40, 20, *np.linspace(-1, 1, 96)])
    trace, means, plain = float(matrix.trace()) / 100, [], []
    for seed in range(60):
        found = search(matrix, seed, k=4)
        nodes, weights = found.spectrum()
        assert weights.sum() == pytest.approx(1)
        top = np.abs(nodes - 100) < 0.1
        assert weights[top].sum() == pytest.approx(0.01, rel=1e-6)
        means.append(nodes @ weights)
        plain.append(found.nodes @ found.weights)
    assert abs(np.mean(means) - trace) < 4 * np.std(means) / np.sqrt(60)  # four standard errors
    assert np.std(means) < 0.1 * np.std(plain)
    whole = search(symmetric(6), k=6)
    np.testing.assert_allclose(whole.spectrum()[1].sum(), 1)
    halves = search(matrix, k=4, basis=1, tolerance=1e-10, products=300)  # restarted
    nodes, weights = halves.spectrum()
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
