"""Permutations that leave nothing in its place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def derangement(count: int, seed: int | Sequence[int]) -> np.ndarray:
    """A random cycle through all of ``count`` ≥ 2 indices, so that none is mapped to itself.

    Example:
        >>> order = derangement(5, seed=0)
        >>> sorted(order.tolist()), bool((order != np.arange(5)).all())
        ([0, 1, 2, 3, 4], True)
    """
    if count < 2:
        raise ValueError(f"Only 2 or more things can all change places; got {count}.")
    cycle = np.random.default_rng(seed).permutation(count)
    order = np.empty(count, dtype=np.int64)
    order[cycle] = np.roll(cycle, 1)
    return order
