"""Statistics of the eigenvalues of many mini-batches (Park & Kim, 2022, arXiv:2202.06709).

Arrays of eigenvalues are (…, mini-batches, k), padded with NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retinoscope.numerics.bootstrap import bootstrap_interval
from retinoscope.numerics.density import one_sided_density, spectral_density

_FAINT = 1e-9
"""Densities below this value are not drawn."""


def negative_share(values: np.ndarray) -> np.ndarray:
    """NEP: the proportion of negative eigenvalues; NaN if there are no eigenvalues.

    Example:
        >>> float(negative_share(np.array([[3.0, -1.0], [2.0, np.nan]])))
        0.3333333333333333
    """
    known = np.isfinite(values).sum((-2, -1))
    with np.errstate(invalid="ignore"):
        return (values < 0).sum((-2, -1)) / known


def positive_mean(values: np.ndarray) -> np.ndarray:
    """APE: the mean of the positive eigenvalues; NaN if there are none.

    Example:
        >>> float(positive_mean(np.array([[3.0, -1.0], [2.0, np.nan]])))
        2.5
    """
    above = np.where(values > 0, values, 0.0)
    with np.errstate(invalid="ignore"):
        return above.sum((-2, -1)) / (above > 0).sum((-2, -1))


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """The k values of largest magnitude of each row.

    Example:
        >>> largest(np.array([[3.0, 1.0, -2.0, np.nan]]), 2).tolist()
        [[3.0, -2.0]]
    """
    order = np.argsort(-np.abs(values), axis=-1, kind="stable")  # NaN is last
    return np.take_along_axis(values, order[..., :k], axis=-1)


def sample_facts(values: np.ndarray, seed: int, known: bool = True) -> dict[str, Any]:
    """NEP and APE with their intervals, by field name.

    Args:
        values: (mini-batches, k).
        seed: Random seed of the bootstrap, which draws whole mini-batches.
        known: Whether these are the values of largest magnitude; otherwise everything is None.
    """
    if not known:
        return dict.fromkeys(("nep", "nep_interval", "ape", "ape_interval"))
    mean = float(positive_mean(values))
    return {
        "nep": float(negative_share(values)),
        "nep_interval": bootstrap_interval(values, negative_share, seed=seed),
        "ape": mean if np.isfinite(mean) else None,
        "ape_interval": bootstrap_interval(values, positive_mean, seed=seed),
    }


def sample_densities(values: np.ndarray) -> dict[str, np.ndarray]:
    """The densities of positive and of negative values with their coordinates, by field name."""
    known = values[np.isfinite(values)]
    negative_at, negative = one_sided_density(known[known < 0], len(known))
    positive_at, positive = one_sided_density(known[known > 0], len(known))
    return {
        "negative_at": negative_at, "negative": negative,
        "positive_at": positive_at, "positive": positive,
    }  # fmt: skip


def whole_density(nodes: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The density of all eigenvalues, averaged over mini-batches, by field name."""
    known = np.isfinite(nodes)
    at, density = spectral_density(nodes[known], weights[known] / len(nodes))
    with np.errstate(divide="ignore"):
        logarithm = np.log10(density)
    return {"spectrum_at": at, "spectrum": np.where(density > _FAINT, logarithm, np.nan)}


def mean_fields(name: str, samples: np.ndarray) -> dict[str, Any]:
    """The mean over mini-batches (the first axis) and its standard error, as two fields.

    For a single mini-batch the error is NaN, or None if the mean is one number.
    """
    count = len(samples)
    spread = samples.std(0, ddof=1) if count > 1 else np.full(samples.shape[1:], np.nan)
    mean, error = samples.mean(0), spread / np.sqrt(count)
    if samples.ndim == 1:
        return {name: float(mean), f"{name}_error": float(error) if count > 1 else None}
    return {name: mean, f"{name}_error": error}
