"""Selects images of a split at random, and derives seeds."""

from __future__ import annotations

import numpy as np


def shuffled(total: int, seed: int, count: int = 0) -> list[int]:
    """Indices in random order, all or the first ``count``: neighbours in a split are often similar.

    Example:
        >>> sorted(shuffled(4, seed=0)), len(shuffled(100, 0, 7))
        ([0, 1, 2, 3], 7)
    """
    order = np.random.default_rng(seed).permutation(total)
    return order[: count or total].tolist()


def seed_of(*numbers: int) -> int:
    """A seed that depends on all of these numbers, for example one per mini-batch.

    Example:
        >>> seed_of(0, 1) == seed_of(0, 1), seed_of(0, 1) == seed_of(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
