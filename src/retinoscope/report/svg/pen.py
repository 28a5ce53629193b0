"""The common parts of all charts in the report: axes, lines, texts and colour scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from retinoscope.core.wording import axis_number, number
from retinoscope.figures.colours import HOLE, shade
from retinoscope.figures.scale import Scale
from retinoscope.report.svg.markup import tag

WIDTH = 460.0


def drawing(parts: Sequence[Markup], name: str, height: float, kind: str = "chart") -> Markup:
    """Combine parts into one picture with the common width of all charts."""
    return tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}", class_=kind, role="img", aria_label=name,
        font_family="system-ui, sans-serif", font_size="11",
    )  # fmt: skip


def x_axis(
    places: Sequence[tuple[float, float]], label: str, ends: tuple[float, float], base: float
) -> list[Markup]:
    """A line at the bottom with a tick for each pair of a value and its x coordinate."""
    marks = [rule(*(ends[0], base, ends[1], base), "#666")]
    for value, x in places:
        marks.append(rule(x, base, x, base + 4, "#666"))
        marks.append(text(axis_number(value), x, base + 16))
    return [*marks, text(label, sum(ends) / 2, base + 34, colour="#222")]


def rule(x1: float, y1: float, x2: float, y2: float, colour: str, **attributes: object) -> Markup:
    """A thin straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width="0.8", **attributes)


def text(content: str, x: float, y: float, anchor: str = "middle", colour: str = "#444") -> Markup:
    """Text next to a chart."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, fill=colour)


def upright(
    content: str, x: float, y: float, anchor: str = "middle", colour: str = "#222"
) -> Markup:
    """Text that runs from bottom to top."""
    return tag("text", content, transform=f"translate({x:g} {y:g}) rotate(-90)",
               text_anchor=anchor, fill=colour)  # fmt: skip


def words(content: str, x: float, y: float, colour: str, anchor: str) -> Markup:
    """Text among curves, with a white outline to keep it readable."""
    halo = {"stroke": "#fff", "stroke_width": "3", "paint_order": "stroke"}
    return tag("text", content, x=x, y=y, fill=colour, text_anchor=anchor, **halo)


def clipping(scale: Scale, shares: np.ndarray) -> str:
    """A note on clipped values; empty if there are none."""
    ends = [f"below {number(scale.low, 3)}"] * bool(np.nanmin(shares, initial=0) < 0)
    ends += [f"above {number(scale.high, 3)}"] * bool(np.nanmax(shares, initial=0) > 1)
    return f"{' and '.join(ends)}: clipped" if scale.clipped and ends else ""


def labelled(scale: Scale, label: str) -> str:
    """The label of the colour scale, and whether it is logarithmic."""
    return f"{label}, logarithmic" if scale.log else label


def legend_beside(
    scale: Scale, label: str, shares: np.ndarray, left: float, ends: tuple[float, float]
) -> list[Markup]:
    """A vertical colour scale with numbers, clipping, and the colour of non-finite values."""
    holes = bool(np.isnan(shares).any())
    top, base = ends[0], ends[1] - (28 if holes else 0)
    steps = 48
    size = (base - top) / steps
    strip = [
        tag("rect", x=left, y=base - (k + 1) * size, width=12.0, height=size,
            fill=shade((k + 0.5) / steps, scale.table))
        for k in range(steps)
    ]  # fmt: skip
    parts = [tag("g", *strip, shape_rendering="crispEdges")]
    for value in scale.levels():
        y = base - float(scale.share(np.array(value))) * (base - top)
        parts.append(rule(left + 12, y, left + 16, y, "#666"))
        parts.append(text(axis_number(value), left + 19, y + 4, "start"))
    if cut := clipping(scale, shares):
        parts.append(text(cut, WIDTH - 2, top - 10, "end", "#8a4b00"))
    if holes:
        parts.append(tag("rect", x=left, y=base + 16, width=12.0, height=12.0, fill=HOLE))
        parts.append(rule(left, base + 28, left + 12, base + 16, "#8d949e"))
        parts.append(text("not finite", left + 17, base + 26, "start"))
    return [*parts, upright(labelled(scale, label), WIDTH - 4, (top + base) / 2)]


def legend_above(scale: Scale, label: str, y: float) -> list[Markup]:
    """A colour scale in one line, at the right: label, lowest value, colours, highest value."""
    right, width, steps = WIDTH - 12, 60.0, 24
    high = number(scale.high, 3)
    left = right - 6.5 * len(high) - 4 - width
    strip = [
        tag("rect", x=left + k * width / steps, y=y - 8, width=width / steps, height=9.0,
            fill=shade((k + 0.5) / steps, scale.table))
        for k in range(steps)
    ]  # fmt: skip
    low = f"{labelled(scale, label)}  {number(scale.low, 3)}"
    return [
        tag("g", *strip, shape_rendering="crispEdges"),
        text(high, right, y, "end"),
        text(low, left - 4, y, "end"),
    ]
