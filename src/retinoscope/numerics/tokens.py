"""Norms of the positions of a state, and its largest entries, per image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retinoscope.numerics.lengths import lengths

MOST = 512
"""Number of entries per image from which a median is taken exactly; above it, of a subset."""


def position_norms(maps: Tensor) -> Tensor:
    """The Euclidean norm over channels of each position of maps (N, C, H, W): (N, H·W).

    Example:
        >>> position_norms(torch.tensor([[[[3.0, 0.0]], [[4.0, 1.0]]]]))
        tensor([[5., 1.]])
    """
    return lengths(maps).flatten(1)


def quantiles_of_sorted(rows: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Quantiles of sorted rows (N, K), by linear interpolation: (N, number of shares).

    Example:
        >>> quantiles_of_sorted(np.array([[1.0, 2.0, 3.0]]), (0, 0.5, 0.75)).tolist()
        [[1.0, 2.0, 2.5]]
    """
    at = np.asarray(shares) * (rows.shape[1] - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, rows.shape[1] - 1)
    return rows[:, low] * (1 - at + low) + rows[:, high] * (at - low)


def positive_median(rows: np.ndarray) -> np.ndarray:
    """The median of the positive entries of sorted rows without negative ones; NaN without any.

    After a ReLU, more than half of all entries may be 0.

    Example:
        >>> positive_median(np.array([[0.0, 0.0, 0.0, 2.0, 4.0], [0.0] * 5])).tolist()
        [3.0, nan]
    """
    count = rows.shape[1]
    zeros = (rows == 0).sum(1)
    each = np.arange(len(rows))
    low, high = (np.minimum((zeros + count - one) // 2, count - 1) for one in (1, 0))
    return np.where(zeros < count, (rows[each, low] + rows[each, high]) / 2.0, np.nan)


def largest_entries(maps: Tensor, prefix: Tensor | None = None) -> Tensor:
    """The largest absolute entry of each channel, over positions and prefix tokens: (N, C).

    Args:
        maps: (N, C, H, W).
        prefix: (N, k, C).
    """
    largest = torch.maximum(maps.amax((2, 3)), -maps.amin((2, 3)))
    return largest if prefix is None else torch.maximum(largest, prefix.abs().amax(1))


def entry_step(shape: Sequence[int], most: int = MOST) -> int:
    """Every how many entries of maps (C, H, W) the median is taken of.

    It shares no factor with the number of channels or positions, so that all of them occur.

    Example:
        >>> entry_step((192, 8, 8)), entry_step((4, 4, 4))
        (25, 1)
    """
    channels, positions = shape[0], math.prod(shape[1:])
    step = max(1, -(-channels * positions // most))
    while math.gcd(step, channels * positions) > 1:
        step += 1
    return step


def median_entry(maps: Tensor) -> np.ndarray:
    """The median of each image's absolute entries that are not 0: (N,).

    Only every :func:`entry_step`-th entry is used, in the order of memory.

    Example:
        >>> median_entry(torch.tensor([[[[1.0, -3.0, 5.0, 0.0]]]])).tolist()
        [3.0]
    """
    stored = maps.movedim(1, -1) if maps.stride(1) == 1 else maps  # so that nothing is copied
    few = stored.reshape(len(maps), -1)[:, :: entry_step(maps.shape[1:])]
    return positive_median(np.sort(few.abs().cpu().numpy(), axis=1))
