"""Colour scales: ends, clipping, logarithm, round tick values and contour lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

_TIMES = 5.0
"""Upper end of the colours, as a multiple of the distance from the lowest value to the median.

A bowl is about 3 medians high at the corners of a square, so only extreme values are clipped.
"""
_EXPLODES = 20.0
"""Ratio of the quartiles' heights above which a logarithmic scale is used."""
_ROUNDING = 1e-6
"""Fraction of the scale by which a value may exceed its end without being called clipped."""


@dataclass(frozen=True)
class Scale:
    """A mapping from a range of values to 0 … 1."""

    low: float
    high: float
    log: bool = False
    clipped: bool = False
    """Whether there are values beyond its ends."""
    diverging: bool = False
    """Whether colours diverge from the centre."""

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        diverging: bool = False,
        limits: Sequence[float] | None = None,
    ) -> Scale:
        """The scale of all finite values; a few very large ones do not compress the others."""
        finite = np.asarray(values, dtype=float)[np.isfinite(values)]
        if limits is not None:
            low, high = map(float, limits)
            room = _ROUNDING * (high - low)
            beyond = bool(((finite < low - room) | (finite > high + room)).any())
            return cls(low, high, clipped=beyond, diverging=diverging)
        if diverging:
            return cls._around_zero(np.abs(finite))
        if not finite.size:
            return cls(0.0, 1.0)
        low, quarter, middle, most, high = np.quantile(finite, (0, 0.25, 0.5, 0.75, 1)).tolist()
        log = low > 0 and most - low > _EXPLODES * (quarter - low) > 0
        if log:
            limit = low * (middle / low) ** min(_TIMES, 300 / max(1.0, math.log10(middle / low)))
        else:
            limit = low + _TIMES * (middle - low)
        if low < limit < high:
            return cls(low, limit, log, True)
        return cls(low, high if high > low else low + (0.1 * abs(low) or 0.1), log)

    @classmethod
    def _around_zero(cls, sizes: np.ndarray) -> Scale:
        if not sizes.size or not sizes.any():
            return cls(-1.0, 1.0, diverging=True)
        high, limit = float(sizes.max()), _TIMES * float(np.median(sizes))
        end = limit if 0 < limit < high else high
        return cls(-end, end, clipped=end < high, diverging=True)

    @property
    def table(self) -> Literal["sequential", "diverging"]:
        """The colour table that it uses."""
        return "diverging" if self.diverging else "sequential"

    def share(self, values: np.ndarray) -> np.ndarray:
        """Positions from 0 to 1; clipped values are outside, values that are not finite are NaN."""
        values = np.where(np.isfinite(values), values, np.nan)
        if self.log:
            return np.log(values / self.low) / math.log(self.high / self.low)
        return (values - self.low) / (self.high - self.low)

    def levels(self) -> list[float]:
        """Round values for contour lines and the tick labels of the colour scale."""
        if not self.log:
            return ticks(self.low, self.high, 8)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        digits = (1, 2, 5) if last - first <= 3 else (1,)
        every = max(1, (last - first) // 8)
        rounds = [d * 10.0**e for e in range(first, last + 1, every) for d in digits]
        return [v for v in rounds if self.low <= v <= self.high]


def common_scale(
    arrays: Sequence[np.ndarray],
    diverging: bool = False,
    limits: Sequence[float] | None = None,
    times: float = 4.0,
) -> Scale | None:
    """A common scale for arrays side by side; None if one of them would have a single colour."""
    if not arrays:
        return None
    everything = np.concatenate([values.ravel() for values in arrays])
    scale = Scale.of(everything, diverging, limits)
    for values in arrays:
        own = Scale.of(values, diverging, limits)
        ends = scale.share(np.array([own.low, own.high]))
        if np.isfinite(values).any() and times * (min(1.0, ends[1]) - ends[0]) < 1:
            return None
    return scale


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two ends.

    Example:
        >>> ticks(-0.1, 1.05)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return []
    rough = (high - low) / about
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * 0.8)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") + 0.0 for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ends of a logarithmic axis.

    Example:
        >>> log_ticks(0.05, 3.0), log_ticks(1.1, 1.9)
        ([0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [1.2, 1.4, 1.6, 1.8])
    """
    found = Scale(low, high, log=True).levels()
    return found if len(found) > 2 else ticks(low, high)


def contours(
    values: np.ndarray, level: float, x: np.ndarray | None = None, y: np.ndarray | None = None
) -> list[np.ndarray]:
    """The contour lines of ``values`` at ``level``, each as points (n, 2).

    Args:
        values: One row per y; there is no line between four neighbours if one is NaN.
        level: The value to follow.
        x: Coordinates of the columns. Default: their indices.
        y: Coordinates of the rows.

    Example:
        >>> [line] = contours(np.array([[0.0, 1.0], [0.0, 1.0]]), 0.25)
        >>> line.tolist()
        [[0.25, 1.0], [0.25, 0.0]]
    """
    from contourpy import contour_generator

    made = contour_generator(
        x, y, np.ma.masked_invalid(values), name="serial", corner_mask=False
    )  # fmt: skip
    return [np.asarray(line) for line in made.lines(level)]
