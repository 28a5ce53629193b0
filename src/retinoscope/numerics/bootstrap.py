"""Confidence intervals by bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SAMPLES = 2000
_PARTS = 20
"""Number of parts in which the samples are drawn, to limit memory."""
_ENTRIES = 2**22
"""Maximum number of counts that are held at a time."""


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


def resampled_means(rows: np.ndarray, resamples: int, seed: int = 0) -> np.ndarray:
    """The means of rows (N, M) over bootstrap samples of N rows each: (resamples, M).

    All columns share their samples, so differences between columns are paired. The means are
    products with the matrix that counts how often each sample contains each row.

    Example:
        >>> means = resampled_means(np.array([[0.0, 1.0], [2.0, 3.0]]), resamples=50)
        >>> means.shape, np.unique(means[:, 0]), bool((means[:, 1] == means[:, 0] + 1).all())
        ((50, 2), array([0., 1., 2.]), True)
    """
    random, count = np.random.default_rng(seed), len(rows)
    found = np.empty((resamples, rows.shape[1]))
    step = max(1, _ENTRIES // count)
    for start in range(0, resamples, step):
        some = found[start : start + step]
        chosen = random.integers(count, size=(len(some), count))
        chosen += count * np.arange(len(some))[:, None]
        counts = np.bincount(chosen.ravel(), minlength=some.shape[0] * count)
        some[:] = counts.reshape(-1, count).astype(np.float64) @ rows / count
    return found


def interval_of(samples: np.ndarray, share: float = 0.95) -> np.ndarray:
    """Both ends of the interval that contains ``share`` of the samples (S, …): (…, 2).

    Example:
        >>> interval_of(np.arange(101.0)[:, None], share=0.9)
        array([[ 5., 95.]])
    """
    ends = np.quantile(samples, [(1 - share) / 2, (1 + share) / 2], axis=0)
    return np.moveaxis(ends, 0, -1)


@dataclass(frozen=True, eq=False)
class Resampled:
    """Means over rows, and the same means of many bootstrap samples of the rows.

    Example:
        >>> means = Resampled.of(np.array([[0.0, 1.0], [2.0, 3.0]]), resamples=100)
        >>> (means[1] - means[0]).interval
        array([1., 1.])
    """

    values: np.ndarray
    samples: np.ndarray
    """(resamples, …)."""

    @classmethod
    def of(cls, rows: np.ndarray, resamples: int, seed: int = 0) -> Resampled:
        """The means of rows (N, …) over the first axis; NaN where any row is not finite."""
        flat = rows.reshape(len(rows), -1).astype(np.float64)
        finite = np.isfinite(flat).all(0)
        values = np.full(flat.shape[1], np.nan)
        samples = np.full((resamples, flat.shape[1]), np.nan)
        values[finite] = flat[:, finite].mean(0)
        samples[:, finite] = resampled_means(flat[:, finite], resamples, seed)
        return cls(values.reshape(rows.shape[1:]), samples.reshape(resamples, *rows.shape[1:]))

    def __getitem__(self, which: Any) -> Resampled:
        return Resampled(self.values[which], self.samples[:, which])

    def __sub__(self, other: Resampled) -> Resampled:
        return Resampled(self.values - other.values, self.samples - other.samples)

    def mean(self) -> Resampled:
        """The mean over the last axis."""
        return Resampled(self.values.mean(-1), self.samples.mean(-1))

    @property
    def error(self) -> np.ndarray:
        """The bootstrap standard error."""
        return self.samples.std(0)

    @property
    def interval(self) -> np.ndarray:
        """Both ends of the 95 % interval, (…, 2)."""
        return interval_of(self.samples)
