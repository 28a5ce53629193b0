"""Bars as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable

from markupsafe import Markup

from retinoscope.core.wording import shortened
from retinoscope.figures.colours import BAR
from retinoscope.figures.figure import Bars, Point
from retinoscope.figures.scale import ticks
from retinoscope.report.svg.markup import tag
from retinoscope.report.svg.pen import WIDTH, drawing, rule, text, x_axis

_BAR, _WIDEST, _RIGHT, _ABOVE, _BOTTOM = 18.0, 190.0, 12.0, 12.0, 42.0


def bars_svg(chart: Bars) -> Markup:
    """A bar chart; names that are too long are shortened in the middle."""
    left = min(_WIDEST, 16 + 6.2 * max(map(len, chart.names), default=0))
    low, high = chart.x_range or chart.range()
    base = _ABOVE + _BAR * len(chart.points)

    def across(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - _RIGHT - left)

    parts = x_axis([(v, across(v)) for v in ticks(low, high)], chart.label,
                   (left, WIDTH - _RIGHT), base)  # fmt: skip
    parts.append(rule(across(0.0), _ABOVE, across(0.0), base, "#666"))
    for index, (point, name) in enumerate(zip(chart.points, chart.names, strict=True)):
        middle = _ABOVE + _BAR * (index + 0.5)
        parts.append(text(shortened(name, int((left - 10) / 6.2)), left - 8, middle + 4, "end"))
        parts += _bar(point, middle, across)
    return drawing(parts, chart.name, base + _BOTTOM, "chart bars")


def _bar(point: Point, middle: float, across: Callable[[float], float]) -> list[Markup]:
    if not math.isfinite(point.y):
        return [text("–", across(0.0) + 4, middle + 4, "start")]
    start, stop = sorted((across(0.0), across(point.y)))
    bar = tag(
        "rect", tag("title", point.label), x=start, y=middle - 5, height="10",
        width=max(1.0, stop - start), fill=BAR, class_="point", data_label=point.label,
    )  # fmt: skip
    if not math.isfinite(point.error):
        return [bar]
    ends = [across(point.y + sign * 2 * point.error) for sign in (-1, 1)]
    return [bar, rule(ends[0], middle, ends[1], middle, "#1c2430", class_="whisker")]
