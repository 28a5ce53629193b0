"""Estimates the time of repeated work from short trials."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST = 4
"""Items in the first trial; each further trial doubles the number …"""
_ENOUGH = 0.5
"""… until a trial takes this many seconds. Small batches are slower per item than large ones."""


def seconds_each(run: Callable[[int], object], items: int, batch: int, step: int = 1) -> float:
    """The seconds that ``run`` takes per item.

    Args:
        run: Processes the given number of items.
        items: The number of available items.
        batch: The number of items that are processed together, which no trial exceeds unless
            ``step`` does.
        step: The number of items is a multiple of this.

    Example:
        >>> tried = []
        >>> _ = seconds_each(tried.append, items=100, batch=16)
        >>> tried
        [4, 8, 16]
    """
    count = min(items, max(_FIRST, step))
    while count:
        start = time.monotonic()
        run(count)
        seconds = time.monotonic() - start
        larger = min(items, batch, 2 * count) // step * step
        if seconds >= _ENOUGH or larger <= count:
            return seconds / count
        count = larger
    return 0.0
