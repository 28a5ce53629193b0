"""Block structure of a similarity matrix, and intervals by the jackknife."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip
"""97.5 % quantile of Student's t by degrees of freedom."""


def block_contrast(similarity: np.ndarray, blocks: Sequence[int | None]) -> float | None:
    """The mean similarity of different members of one block minus that of different blocks.

    Args:
        similarity: (n, n).
        blocks: The block of each row; members without one are left out.

    Returns:
        None if there is no pair within a block, or none between blocks.

    Example:
        >>> block_contrast(np.array([[1, 0.9, 0.2], [0.9, 1, 0.4], [0.2, 0.4, 1]]), [1, 1, 2])
        0.6
    """
    members = [i for i, block in enumerate(blocks) if block is not None]
    inside, across = [], []
    for n, i in enumerate(members):
        for j in members[n + 1 :]:
            (inside if blocks[i] == blocks[j] else across).append(similarity[i, j])
    return float(np.mean(inside) - np.mean(across)) if inside and across else None


def jackknife_interval(
    statistic: Callable[[np.ndarray], float | None], count: int
) -> tuple[float | None, tuple[float, float] | None]:
    """A statistic of all groups, and its 95 % interval.

    The statistic is computed without each group in turn; its spread gives the standard error, and
    Student's t with ``count`` − 1 degrees of freedom the interval.

    Args:
        statistic: Maps the indices of some groups to a number; None if it is undefined.
        count: The number of groups.

    Returns:
        None for an undefined number, and for the interval of a single group.

    Example:
        >>> values = np.array([1.0, 2.0, 3.0])
        >>> whole, (low, high) = jackknife_interval(lambda i: float(values[i].mean()), 3)
        >>> whole, round(low, 2), round(high, 2)
        (2.0, -0.48, 4.48)
    """
    every = np.arange(count)
    whole = statistic(every)
    without = [statistic(np.delete(every, left)) for left in every] if count > 1 else []
    numbers = [value for value in without if value is not None]
    if whole is None or count < 2 or len(numbers) < count:
        return whole, None
    spread = np.array(numbers) - np.mean(numbers)
    error = math.sqrt((count - 1) / count * float((spread**2).sum()))
    reach = _T[max(degrees for degrees in _T if degrees <= count - 1)] * error
    return whole, (whole - reach, whole + reach)
