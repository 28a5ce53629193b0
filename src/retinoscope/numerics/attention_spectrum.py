"""Which eigenvalue of an attention layer dominates, and how fast repeated attention averages.

A layer X + A X H with attention weights A (n × n, rows that sum to 1) and H = W_V W_proj (d × d) is
the matrix I + Hᵀ ⊗ A on stacked columns of X. Its eigenvalues are 1 + λ_H λ_A for all pairs of
eigenvalues of H and A (Dovonon et al., 2024, arXiv:2401.04301).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Outcome = Literal["smoothing", "not smoothing", "tie"]
OUTCOMES: tuple[Outcome, ...] = ("smoothing", "not smoothing", "tie")
EQUAL = 1e-9
"""Relative difference up to which two moduli are equal, and distance up to which λ_A is 1."""


@dataclass(frozen=True)
class Dominating:
    """The eigenvalue 1 + λ_H λ_A of the largest modulus, and which λ_A it comes from."""

    outcome: Outcome
    """``smoothing``: only from λ_A = 1; ``not smoothing``: only from others; ``tie``: from both, or
    A has no other eigenvalue."""
    modulus: float
    is_complex: bool
    """Whether λ_H or λ_A of a dominating pair is not real."""


def stochastic_eigenvalues(weights: np.ndarray) -> np.ndarray:
    """All eigenvalues (…, n − 1) of matrices (…, n, n) whose rows sum to 1, except the 1 they have.

    That one belongs to the constant vector. A reflection that maps this vector to the first axis
    makes the matrix block triangular; the second block has the other eigenvalues.

    Example:
        >>> stochastic_eigenvalues(np.array([[0.75, 0.25], [0.25, 0.75]])).real
        array([0.5])
    """
    count = weights.shape[-1]
    normal = np.full(count, 1 / np.sqrt(count))
    normal[0] += 1.0
    reflection = np.eye(count) - 2 * np.outer(normal, normal) / (normal @ normal)
    return np.linalg.eigvals((reflection @ weights @ reflection)[..., 1:, 1:])


def product_eigenvalues(values: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Eigenvalues of W_V W_proj (…, d, k) @ (…, k, d), computed from the smaller product.

    W_proj W_V has the same eigenvalues except for zeros; if k < d, one 0 stands for all of them.

    Example:
        >>> product_eigenvalues(np.array([[2.0], [0.0]]), np.array([[3.0, 1.0]])).real
        array([6., 0.])
    """
    width, inner = values.shape[-2:]
    if inner >= width:
        return np.linalg.eigvals(values @ output)
    found = np.linalg.eigvals(output @ values)
    return np.concatenate([found, np.zeros((*found.shape[:-1], 1))], -1)


def dominating(of_weights: np.ndarray, of_maps: np.ndarray) -> Dominating:
    """Find the pairs that maximise |1 + λ_H λ_A|.

    Args:
        of_weights: The eigenvalues of A except one that is 1: :func:`stochastic_eigenvalues`. For
            a block-diagonal A, as of windows, those of all blocks.
        of_maps: The eigenvalues of H.

    Example:
        >>> dominating(np.array([0.2]), np.array([0.5])).outcome
        'smoothing'
        >>> dominating(np.array([-0.2]), np.array([-0.5])).outcome
        'not smoothing'
    """
    is_one = np.abs(of_weights - 1) <= EQUAL
    others = of_weights[~is_one]
    first = np.abs(1 + of_maps)
    rest = np.abs(1 + np.multiply.outer(others, of_maps))
    largest = float(max(first.max(), rest.max(initial=0.0)))
    least = largest * (1 - EQUAL)
    from_one, from_others = first >= least, rest >= least
    if not others.size or (from_one.any() and from_others.any()):
        outcome: Outcome = "tie"
    else:
        outcome = "smoothing" if from_one.any() else "not smoothing"
    rows, columns = np.nonzero(from_others)
    pairs = [of_maps[from_one], of_maps[columns], others[rows]]
    return Dominating(outcome, largest, any(_complex(one) for one in pairs))


def tally(others: np.ndarray, of_maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outcome of each head as an index into ``OUTCOMES``, and whether it is complex: (heads,).

    Args:
        others: (windows, heads, n − 1): :func:`stochastic_eigenvalues` of each head's weights. All
            windows together are one A.
        of_maps: The eigenvalues of H of each head, (heads, k).
    """
    by_head = np.moveaxis(others, 1, 0)
    found = [dominating(own.ravel(), maps) for own, maps in zip(by_head, of_maps, strict=True)]
    outcomes = [OUTCOMES.index(one.outcome) for one in found]
    return np.array(outcomes), np.array([one.is_complex for one in found])


def share_negative(of_maps: np.ndarray) -> np.ndarray:
    """The share of the eigenvalues (…, k) other than 0 whose real part is negative; NaN if none.

    Example:
        >>> share_negative(np.array([-1.0, 0.5, 0.0])).item()
        0.5
    """
    counted = (of_maps != 0).sum(-1)
    with np.errstate(invalid="ignore"):
        return (np.real(of_maps) < 0).sum(-1) / np.where(counted, counted, np.nan)


def with_sum_one(weights: np.ndarray) -> np.ndarray | None:
    """Weights divided by the sum of each row; None if sums are not 1 up to rounding errors.

    Example:
        >>> with_sum_one(np.array([[0.5, 0.501]])).sum(), with_sum_one(np.array([[0.5, 0.6]]))
        (np.float64(1.0), None)
    """
    total = weights.sum(-1, keepdims=True)
    # Half precision has rounding errors of this size.
    fits = (np.abs(total - 1) <= 0.02).all() and weights.min() >= -0.02
    return weights / total if fits else None


def repeated_attention(weights: np.ndarray, values: np.ndarray, times: int) -> np.ndarray:
    """‖HFC(Aᵏ V)‖/‖HFC(V)‖ for k = 0 … ``times``, for each head: (…, times + 1).

    Blocks of a block-diagonal A are the second axis from the front of the last four. The mean of
    all tokens of a block stays a mean, whatever A is, so only HFC has to be followed, and what it
    loses is never hidden by rounding errors of the mean.

    Args:
        weights: (…, blocks, heads, n, n), each row with sum 1.
        values: (…, blocks, heads, n, channels).
        times: The largest power.

    Returns:
        (…, heads, times + 1); NaN if all values of a block are equal.

    Example:
        >>> mixing, values = np.full((1, 1, 2, 2), 0.25), np.array([[[[1.0], [3.0]]]])
        >>> mixing[..., [0, 1], [0, 1]] = 0.75
        >>> repeated_attention(mixing, values, 3)
        array([[1.   , 0.5  , 0.25 , 0.125]])
    """
    high = _without_mean(values)
    norms = [_norm(high)]
    for _ in range(times):
        high = _without_mean(weights @ high)
        norms.append(_norm(high))
    found = np.stack(norms, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(found[..., :1] > 0, found / found[..., :1], np.nan)


def _without_mean(tokens: np.ndarray) -> np.ndarray:
    return tokens - tokens.mean(-2, keepdims=True)


def _norm(tokens: np.ndarray) -> np.ndarray:
    """The norm over blocks, tokens and channels: (…, heads)."""
    return np.sqrt(np.square(tokens).sum((-4, -2, -1)))


def _complex(values: np.ndarray) -> bool:
    return bool((np.abs(np.imag(values)) > EQUAL * np.abs(values)).any())
