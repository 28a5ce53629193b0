import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.attention_spectrum import (
    OUTCOMES,
    dominating,
    product_eigenvalues,
    repeated_attention,
    share_negative,
    stochastic_eigenvalues,
    tally,
    with_sum_one,
)


def stochastic(draw, *shape, sharpness=1.0):
    logits = sharpness * draw.standard_normal(shape)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def dense(weights, values, output):
    """The layer as one matrix on stacked columns of X, and its eigenvectors."""
    matrix = np.eye(len(weights) * len(values)) + np.kron((values @ output).T, weights)
    found, vectors = np.linalg.eig(matrix)
    largest = np.abs(found).argmax()
    return np.abs(found[largest]), vectors[:, largest].reshape(len(values), len(weights)).T


def test_the_dense_form_is_the_layer():
    draw = np.random.default_rng(0)
    weights, x = stochastic(draw, 5, 5), draw.standard_normal((5, 4))
    values, output = draw.standard_normal((4, 2)), draw.standard_normal((2, 4))
    matrix = np.eye(20) + np.kron((values @ output).T, weights)
    layer = x + weights @ x @ values @ output
    np.testing.assert_allclose(matrix @ x.T.ravel(), layer.T.ravel())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    tokens=st.integers(2, 6),
    width=st.integers(1, 5),
    head=st.integers(1, 5),
    sharpness=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_agrees_with_the_dense_form(seed, tokens, width, head, sharpness):
    """The modulus, and that its eigenvector is the same for all tokens if and only if smoothing."""
    draw = np.random.default_rng(seed)
    weights = stochastic(draw, tokens, tokens, sharpness=sharpness)
    values, output = draw.standard_normal((width, head)), draw.standard_normal((head, width))
    modulus, vector = dense(weights, values, output)
    others = stochastic_eigenvalues(weights)
    found = dominating(others, product_eigenvalues(values, output))
    assert found.modulus == pytest.approx(modulus, rel=1e-6)
    spread = np.abs(vector - vector.mean(0)).max()
    if found.outcome == "smoothing":
        assert spread < 1e-5
    elif found.outcome == "not smoothing":
        assert spread > 1e-5


def test_both_outcomes_and_complex_ones_happen_at_order_one():
    draw = np.random.default_rng(1)
    cases = [
        dominating(
            stochastic_eigenvalues(stochastic(draw, 6, 6, sharpness=4)),
            product_eigenvalues(draw.standard_normal((6, 3)), draw.standard_normal((3, 6))),
        )
        for _ in range(200)
    ]
    seen = {(case.outcome, case.is_complex) for case in cases}
    assert {("smoothing", True), ("smoothing", False), ("not smoothing", True)} <= seen


def test_eigenvalues_without_that_of_equal_tokens():
    draw = np.random.default_rng(2)
    for weights in (stochastic(draw, 7, 7), np.eye(7), np.full((7, 7), 1 / 7)):
        every = np.append(stochastic_eigenvalues(weights), 1.0)
        expected = np.linalg.eigvals(weights)
        for values in (every, expected):
            values.sort()
        # Multiple eigenvalues of a matrix that is not normal are known to less.
        np.testing.assert_allclose(np.sort(every), np.sort(expected), atol=1e-7)
    many = stochastic(draw, 3, 2, 5, 5)
    assert stochastic_eigenvalues(many).shape == (3, 2, 4)


def test_zeros_of_a_narrow_product():
    draw = np.random.default_rng(3)
    values, output = draw.standard_normal((5, 2)), draw.standard_normal((2, 5))
    found = product_eigenvalues(values, output)
    expected = np.linalg.eigvals(values @ output)
    assert len(found) == 3
    for one in found:
        assert np.abs(expected - one).min() < 1e-9
    wide = product_eigenvalues(values.T, output.T)  # no zero is added to what has full rank
    np.testing.assert_allclose(np.sort(wide), np.sort(np.linalg.eigvals(values.T @ output.T)))


SPECTRA = {  # eigenvalues of A without that of equal tokens, those of H, and what follows
    "positive H": ([0.5, -0.5], [0.3, 0.0], "smoothing"),
    "negative H": ([0.5, -0.5], [-0.3, 0.0], "not smoothing"),
    "negative H, positive A": ([0.5, 0.1], [-0.3, 0.0], "tie"),  # the zero of H: 1 for all of A
    "negative H of full rank, positive A": ([0.5, 0.1], [-0.3], "not smoothing"),
    "H is 0": ([0.5], [0.0], "tie"),
    "very negative H": ([0.5], [-3.0], "smoothing"),  # |1 − 3| is more than |1 − 1.5|
    "A is the identity": ([1.0, 1.0], [0.3], "tie"),
    "windows": ([1.0, 0.2, 0.1], [0.3], "smoothing"),
    "equal moduli": ([-1.0], [0.5, -0.5], "tie"),
    "nearly equal": ([1 - 1e-6], [0.5], "smoothing"),
    "complex A": ([0.9j, -0.9j], [-0.5, 0.0], "not smoothing"),
}


@pytest.mark.parametrize("case", SPECTRA)
def test_known_spectra(case):
    of_weights, of_maps, expected = SPECTRA[case]
    found = dominating(np.array(of_weights), np.array(of_maps))
    assert found.outcome == expected
    assert found.is_complex == (case == "complex A")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), sharpness=st.sampled_from([0.3, 3.0]))
def test_signs_of_h_decide_while_it_is_at_most_one(seed, sharpness):
    """λ_H ≥ 0 always smooths; with −1 ≤ λ_H ≤ 0 the eigenvalue of equal tokens never leads."""
    draw = np.random.default_rng(seed)
    others = stochastic_eigenvalues(stochastic(draw, 6, 6, sharpness=sharpness))
    squares = draw.uniform(0.01, 1, 4)
    assert dominating(others, squares).outcome == "smoothing"
    assert dominating(others, -squares).outcome != "smoothing"
    assert dominating(others, np.append(-squares, 0.0)).outcome != "smoothing"


def test_the_tally_takes_all_windows_of_a_head_together():
    draw = np.random.default_rng(4)
    weights = stochastic(draw, 3, 2, 4, 4, sharpness=4)
    of_maps = np.array([[0.2, 0.0], [-0.7, 0.0]])
    outcomes, flags = tally(stochastic_eigenvalues(weights), of_maps)
    for head in range(2):
        whole = np.zeros((12, 12))
        for window in range(3):
            place = slice(4 * window, 4 * window + 4)
            whole[place, place] = weights[window, head]
        found = dominating(stochastic_eigenvalues(whole), of_maps[head])
        assert OUTCOMES[outcomes[head]] == found.outcome
        assert flags[head] == found.is_complex


def test_repeated_attention_equals_powers_written_out():
    draw = np.random.default_rng(5)
    weights, values = stochastic(draw, 2, 3, 5, 5), draw.standard_normal((2, 3, 5, 4)) + 10
    found = repeated_attention(weights, values, 4)
    assert found.shape == (3, 5)
    for head, times in np.ndindex(3, 5):
        squares = []
        for window in range(2):
            mixed = np.linalg.matrix_power(weights[window, head], times) @ values[window, head]
            squares.append([np.sum((x - x.mean(0)) ** 2) for x in (mixed, values[window, head])])
        now, first = np.sum(squares, 0)
        assert found[head, times] == pytest.approx(np.sqrt(now / first), rel=1e-9)


def test_repeated_attention_decays_like_the_second_eigenvalue():
    """Without rounding errors of the mean: far below the precision of a number near 1."""
    weights = np.full((1, 1, 8, 8), 0.1 / 8) + 0.9 * np.eye(8)
    values = np.random.default_rng(6).standard_normal((1, 1, 8, 3)) + 1e3
    np.testing.assert_allclose(
        repeated_attention(weights, values, 600)[0], 0.9 ** np.arange(601), rtol=1e-6
    )
    uniform = repeated_attention(np.full((1, 1, 8, 8), 1 / 8), values, 2)[0]
    assert uniform[0] == 1
    assert uniform[1] < 1e-12
    assert np.isnan(repeated_attention(weights, np.ones((1, 1, 8, 3)), 2)).all()


def test_only_weights_with_sum_one():
    draw = np.random.default_rng(7)
    weights = stochastic(draw, 4, 4).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(with_sum_one(weights).sum(-1), 1, atol=1e-15)
    assert with_sum_one(2 * weights) is None
    assert with_sum_one(np.array([[1.5, -0.5]])) is None
    assert with_sum_one(np.array([[np.nan, 1.0]])) is None


def test_share_of_negative_eigenvalues():
    values = np.array([[-1, 0.5, 0], [0, 0, 0], [-1 + 2j, -1 - 2j, -3]])
    np.testing.assert_allclose(share_negative(values), [0.5, np.nan, 1])


def test_repeating_the_layer_does_what_the_outcome_says():
    """After many layers, HFC/LFC vanishes if smoothing dominates, and does not if it does not."""
    draw, ends = np.random.default_rng(8), {}
    weights = stochastic(draw, 5, 5)
    for sign in (1, -1):
        maps, x = sign * np.diag([0.1, 0.3, 0.5]), draw.standard_normal((5, 3))
        for _ in range(400):
            x = x + weights @ x @ maps
            x /= np.linalg.norm(x)
        outcome = dominating(stochastic_eigenvalues(weights), np.diag(maps)).outcome
        ends[outcome] = np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x.mean(0))
    assert ends["smoothing"] < 1e-6
    assert ends["not smoothing"] > 0.1
