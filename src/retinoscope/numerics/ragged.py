"""Rows of unequal length."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def padded(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Rows of unequal length as one array, padded with NaN.

    Example:
        >>> padded([np.array([1.0, 2.0]), np.array([3.0])]).tolist()
        [[1.0, 2.0], [3.0, nan]]
    """
    listed = list(rows)
    table = np.full((len(listed), max(map(len, listed), default=0)), np.nan)
    for index, row in enumerate(listed):
        table[index, : len(row)] = row
    return table
