"""How sure a number is, from drawing its sample again and again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

SAMPLES = 2000
_PARTS = 20
"""In which the samples are drawn: all at once would need much memory."""


def bootstrap_interval(
    groups: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    share: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """The interval that holds ``share`` of a statistic over samples drawn with replacement.

    Whole groups are drawn, since what stands in one group is not independent.

    Args:
        groups: One row per group, (G, k).
        statistic: From many samples at once, (S, G, k), to a value of each, (S,); NaN where a
            sample has none.
        share: How much of the samples lies inside.
        seed: Of the draws.

    Returns:
        Both ends; None where no sample has a value, and where one group is all there is.

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
