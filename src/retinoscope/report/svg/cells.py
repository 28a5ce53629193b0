"""Maps and bars as SVG: charts whose places are cells or names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from retinoscope.report.chart import (
    WIDTH,
    Line,
    Point,
    drawing,
    plain,
    rule,
    shortened,
    sure,
    text,
    ticks,
    upright,
    value_range,
    x_axis,
)  # fmt: skip
from retinoscope.report.markup import tag
from retinoscope.report.surface import Scale, shade, surface

_LEFT, _TOP, _BOTTOM, _SIDE = 56.0, 24.0, 42.0, 304.0
_LEGEND = 374.0
"""Where the colours and their numbers begin."""
_BAR, _WIDEST, _RIGHT, _ABOVE = 18.0, 190.0, 12.0, 12.0

Segment = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class MapChart:
    """Values over two axes as a heat map with iso-lines; :meth:`svg` draws it."""

    x: np.ndarray
    """Places in ascending order, as those of y."""
    y: np.ndarray
    values: np.ndarray
    """One row per place along y."""
    hints: Sequence[Sequence[str]]
    """What a reader sees when pointing at a cell."""
    labels: tuple[str, str, str]
    """Of x, of y and of the values."""
    name: str = ""
    scale: Scale | None = None

    errors = ""
    """A map has no place for standard errors."""

    def svg(self) -> Markup:
        """The chart as one element."""
        scale = self.scale or Scale.of(self.values)
        shares = scale.share(self.values)
        columns, rows = _edges(self.x), _edges(self.y)
        parts = [
            *self._cells(shares, columns, rows),
            *self._lines(scale, shares, columns, rows),
            *self._centre(columns, rows),
            *self._axes(columns, rows),
            *_legend(scale, self.labels[2], shares),
        ]
        return drawing(parts, self.name, _TOP + _SIDE + _BOTTOM, "chart heat")

    def surface(self) -> Markup:
        """The same in three dimensions; nothing where no value is finite."""
        scale = self.scale or Scale.of(self.values)
        return surface(self.x, self.y, self.values, self.labels, scale)

    def _cells(self, shares: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> list[Markup]:
        """A box per value, half way to its neighbours; hatched where it is no finite number."""
        lefts, tops = _across(columns, columns), _down(rows, rows)
        boxes, hatched = [], []
        for i, row in enumerate(shares.tolist()):
            for j, share in enumerate(row):
                left, right, top, bottom = lefts[j], lefts[j + 1], tops[i + 1], tops[i]
                if math.isnan(share):
                    hatched.append(f"M{left:.1f} {bottom:.1f}L{right:.1f} {top:.1f}")
                boxes.append(
                    tag("rect", x=left, y=top, width=right - left, height=bottom - top,
                        fill="#d9dce1" if math.isnan(share) else shade(share), class_="point",
                        data_label=self.hints[i][j])
                )  # fmt: skip
        lines = [tag("path", d="".join(hatched), stroke="#8d949e", pointer_events="none")]
        return [tag("g", *boxes, shape_rendering="crispEdges"), *(lines if hatched else [])]

    def _lines(
        self, scale: Scale, shares: np.ndarray, columns: np.ndarray, rows: np.ndarray
    ) -> list[Markup]:
        """Where the values are those written beside the colours: light on dark, dark on light."""
        across, down = _across(self.x, columns), _down(self.y, rows)
        drawn = []
        for value in scale.levels():
            level = float(scale.share(np.array(value)))
            steps = [
                f"M{_between(across, a):.1f} {_between(down, b):.1f}"
                f"L{_between(across, c):.1f} {_between(down, d):.1f}"
                for (a, b), (c, d) in contours(shares, level)
            ]
            if steps:
                drawn.append(
                    tag("path", d="".join(steps), class_="iso", data_level=plain(value),
                        fill="none", stroke="#fff" if level < 0.6 else "#1c2430",
                        stroke_opacity="0.75", stroke_width="1", stroke_linecap="round",
                        pointer_events="none")
                )  # fmt: skip
        return drawn

    def _centre(self, columns: np.ndarray, rows: np.ndarray) -> list[Markup]:
        """A cross at the origin, if it is in sight."""
        if not (columns[0] <= 0 <= columns[-1] and rows[0] <= 0 <= rows[-1]):
            return []
        x, y = _across(np.zeros(1), columns)[0], _down(np.zeros(1), rows)[0]
        cross = f"M{x - 5:.1f} {y:.1f}H{x + 5:.1f}M{x:.1f} {y - 5:.1f}V{y + 5:.1f}"
        return [
            tag("path", d=cross, stroke=ink, stroke_width=width, stroke_linecap="round",
                class_="centre", pointer_events="none")
            for ink, width in (("#fff", "4"), ("#b3261e", "1.8"))
        ]  # fmt: skip

    def _axes(self, columns: np.ndarray, rows: np.ndarray) -> list[Markup]:
        """Round numbers along both sides."""
        base = _TOP + _SIDE
        bottom = [(v, _across(np.array([v]), columns)[0]) for v in ticks(columns[0], columns[-1])]
        parts = x_axis(bottom, self.labels[0], (_LEFT, _LEFT + _SIDE), base)
        parts.append(rule(_LEFT, _TOP, _LEFT, base, "#666"))
        for value in ticks(rows[0], rows[-1]):
            y = _down(np.array([value]), rows)[0]
            parts.append(rule(_LEFT - 4, y, _LEFT, y, "#666"))
            parts.append(text(plain(value), _LEFT - 7, y + 4, "end"))
        return [*parts, upright(self.labels[1], 12, _TOP + _SIDE / 2)]


def contours(values: np.ndarray, level: float) -> list[Segment]:
    """Straight pieces of the line on which ``values`` are ``level``, by marching squares.

    Args:
        values: One row per y; where one of four neighbours is NaN there is no line between them.
        level: The value to follow.

    Returns:
        Pairs of points (column, row), counted in places of the grid.

    Example:
        >>> import numpy as np
        >>> contours(np.array([[0.0, 1.0], [0.0, 1.0]]), 0.25)
        [((0.25, 0.0), (0.25, 1.0))]
    """
    pieces: list[Segment] = []
    above = values >= level
    mixed = above[:-1, :-1] + 2 * above[:-1, 1:] + 4 * above[1:, 1:] + 8 * above[1:, :-1]
    whole = np.isfinite(values[:-1, :-1] + values[:-1, 1:] + values[1:, 1:] + values[1:, :-1])
    for i, j in np.argwhere(whole & (mixed > 0) & (mixed < 15)).tolist():
        # Around the square: its corners, and where the line crosses the sides between them.
        around = [(j, i), (j + 1, i), (j + 1, i + 1), (j, i + 1)]
        heights = [float(values[row, column]) for column, row in around]
        crossed = [
            _crossing(around[k], around[(k + 1) % 4], heights[k], heights[(k + 1) % 4], level)
            for k in range(4)
            if (heights[k] >= level) != (heights[(k + 1) % 4] >= level)
        ]
        if len(crossed) == 4 and (sum(heights) / 4 >= level) == (heights[0] >= level):
            pieces += [(crossed[0], crossed[1]), (crossed[2], crossed[3])]
        elif len(crossed) == 4:
            pieces += [(crossed[3], crossed[0]), (crossed[1], crossed[2])]
        else:
            pieces.append((crossed[0], crossed[1]))
    return pieces


def _crossing(
    start: tuple[int, int], stop: tuple[int, int], first: float, last: float, level: float
) -> tuple[float, float]:
    """Where the level lies on a side, as if values changed evenly along it."""
    share = (level - first) / (last - first)
    return start[0] + share * (stop[0] - start[0]), start[1] + share * (stop[1] - start[1])


def _legend(scale: Scale, label: str, shares: np.ndarray) -> list[Markup]:
    """The colours with their numbers, what is clipped, and what is no number."""
    holes = bool(np.isnan(shares).any())
    steps, top, base = 48, _TOP, _TOP + _SIDE - (28 if holes else 0)
    size = (base - top) / steps
    strip = [
        tag("rect", x=_LEGEND, y=base - (k + 1) * size, width=12.0, height=size,
            fill=shade((k + 0.5) / steps))
        for k in range(steps)
    ]  # fmt: skip
    parts = [tag("g", *strip, shape_rendering="crispEdges")]
    for value in scale.levels():
        y = base - float(scale.share(np.array(value))) * (base - top)
        parts.append(rule(_LEGEND + 12, y, _LEGEND + 16, y, "#666"))
        parts.append(text(plain(value), _LEGEND + 19, y + 4, "start"))
    if scale.clipped and np.nanmax(shares, initial=0.0) > 1:
        cut = f"above {scale.high:.3g}: clipped"
        parts.append(text(cut, WIDTH - 2, _TOP - 10, "end", "#8a4b00"))
    if holes:
        parts.append(tag("rect", x=_LEGEND, y=base + 16, width=12.0, height=12.0, fill="#d9dce1"))
        parts.append(rule(_LEGEND, base + 28, _LEGEND + 12, base + 16, "#8d949e"))
        parts.append(text("not finite", _LEGEND + 17, base + 26, "start"))
    shown = f"{label}, logarithmic" if scale.log else label
    return [*parts, upright(shown, WIDTH - 4, (top + base) / 2)]


def _edges(places: np.ndarray) -> np.ndarray:
    """The ends of cells: half way between neighbours, and as far beyond the first and the last."""
    half = np.diff(places) / 2
    first, last = places[:1] - half[:1], places[-1:] + half[-1:]
    return np.concatenate([first, places[:-1] + half, last])


def _across(values: np.ndarray, edges: np.ndarray) -> list[float]:
    return (_LEFT + _SIDE * (values - edges[0]) / (edges[-1] - edges[0])).tolist()


def _down(values: np.ndarray, edges: np.ndarray) -> list[float]:
    return (_TOP + _SIDE * (edges[-1] - values) / (edges[-1] - edges[0])).tolist()


def _between(places: Sequence[float], place: float) -> float:
    """The coordinate of a place that lies between those of whole numbers."""
    low = min(int(place), len(places) - 2)
    return places[low] + (place - low) * (places[low + 1] - places[low])


@dataclass(frozen=True)
class Bars:
    """A bar per named place, from top to bottom as given; whiskers are two standard errors."""

    points: Sequence[Point]
    """Their y is the length of the bar."""
    names: Sequence[str]
    label: str
    name: str = ""
    x_range: tuple[float, float] | None = None

    @property
    def errors(self) -> str:
        """How standard errors are drawn."""
        return "Whiskers" if sure(self.points) else ""

    def range(self) -> tuple[float, float]:
        """All bars from 0, with their whiskers and some room at the end."""
        low, high = value_range([Line(self.points)], zero=True)
        negative = any(p.y < 0 for p in self.points)
        return low if negative else 0.0, high

    def svg(self) -> Markup:
        """The chart as one element; names too long for their place are shortened in the middle."""
        left = min(_WIDEST, 16 + 6.2 * max(map(len, self.names), default=0))
        low, high = self.x_range or self.range()
        base = _ABOVE + _BAR * len(self.points)

        def across(value: float) -> float:
            return left + (value - low) / (high - low) * (WIDTH - _RIGHT - left)

        parts = x_axis([(v, across(v)) for v in ticks(low, high)], self.label,
                       (left, WIDTH - _RIGHT), base)  # fmt: skip
        parts.append(rule(across(0.0), _ABOVE, across(0.0), base, "#666"))
        for place, (point, name) in enumerate(zip(self.points, self.names, strict=True)):
            middle = _ABOVE + _BAR * (place + 0.5)
            parts.append(text(shortened(name, int((left - 10) / 6.2)), left - 8, middle + 4, "end"))
            parts += _bar(point, middle, across)
        return drawing(parts, self.name, base + _BOTTOM, "chart bars")


def _bar(point: Point, middle: float, across: Callable[[float], float]) -> list[Markup]:
    if not math.isfinite(point.y):
        return [text("–", across(0.0) + 4, middle + 4, "start")]
    start, stop = sorted((across(0.0), across(point.y)))
    bar = tag(
        "rect", tag("title", point.label), x=start, y=middle - 5, height="10",
        width=max(1.0, stop - start), fill="#7fa3c7", class_="point", data_label=point.label,
    )  # fmt: skip
    if not math.isfinite(point.error):
        return [bar]
    ends = [across(point.y + sign * 2 * point.error) for sign in (-1, 1)]
    return [bar, rule(ends[0], middle, ends[1], middle, "#1c2430", class_="whisker")]
