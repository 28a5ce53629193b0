"""Ranges of axes that include all values of a chart with a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from retinoscope.figures.figure import Line


def value_range(lines: Sequence[Line], zero: bool = False) -> tuple[float, float]:
    """A range that includes all finite values with a margin, and 0 if requested."""
    values = [p.y for line in lines for p in line.points if math.isfinite(p.y)]
    if len(lines) == 1:  # its errors are drawn too
        for p in lines[0].points:
            if math.isfinite(p.y) and math.isfinite(p.error):
                values += [p.y - 2 * p.error, p.y + 2 * p.error]
    values += [0.0] if zero or not values else []
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    below = 0.0 if any(line.filled for line in lines) and high > low else room
    return low - below, high + room


def log_range(lines: Sequence[Line]) -> tuple[float, float]:
    """The same for a logarithmic axis, with the margin in logarithms.

    An error that reaches down to 0 does not extend the axis: there is no room for it.
    """
    found: list[np.ndarray] = []
    for line in lines:
        y = line.column("y")
        found.append(y)
        if len(lines) == 1:
            error = 2 * np.nan_to_num(line.column("error"))
            found += [np.maximum(y - error, y / 2), y + error]
    values = np.concatenate(found) if found else np.empty(0)
    values = np.log10(values[np.isfinite(values) & (values > 0)])
    low, high = (float(values.min()), float(values.max())) if values.size else (-0.5, 0.5)
    room = 0.06 * (high - low) or 0.1
    return 10 ** (low - room), 10 ** (high + room)
