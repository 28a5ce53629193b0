"""Confidence intervals by bootstrap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

SAMPLES = 2000
_PARTS = 20
"""Number of parts in which the samples are drawn, to limit memory."""


def bootstrap_interval(
    groups: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    share: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """The interval that contains ``share`` of a statistic's values over bootstrap samples.

    Whole groups are drawn with replacement, since the values of one group are not independent.

    Args:
        groups: One row per group, (G, k).
        statistic: Maps many samples at once, (S, G, k), to one value each, (S,); NaN if undefined.
        share: The fraction of samples inside the interval.
        seed: Random seed.

    Returns:
        Both ends; None if no sample has a value, or if there is only one group.

    Example:
        >>> ones = np.ones((8, 3))
        >>> bootstrap_interval(ones, lambda samples: samples.mean((1, 2)))
        (1.0, 1.0)
    """
    if len(groups) < 2:
        return None
    random = np.random.default_rng(seed)
    chosen = random.integers(len(groups), size=(SAMPLES, len(groups)))
    values = np.concatenate([statistic(groups[some]) for some in np.split(chosen, _PARTS)])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
