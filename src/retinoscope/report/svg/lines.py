"""Line charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from markupsafe import Markup

from retinoscope.core.wording import axis_number, shortened
from retinoscope.figures.colours import BANDS, HOLE, shade
from retinoscope.figures.figure import Band, Line, Lines, Mark, Point, scale_of
from retinoscope.figures.scale import ticks
from retinoscope.report.svg.markup import tag
from retinoscope.report.svg.pen import (
    WIDTH,
    drawing,
    legend_above,
    rule,
    text,
    upright,
    words,
    x_axis,
)

_HEIGHT = 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 12.0, 12.0, 40.0
_MANY = 60
"""Number of points above which a line is thin and its dots appear only on hovering."""


def lines_svg(chart: Lines) -> Markup:
    """The chart as one element."""
    return _Canvas(chart).svg()


class _Canvas:
    """A chart, and the mapping from its values to page coordinates."""

    def __init__(self, chart: Lines) -> None:
        self.chart = chart
        self.scale = chart.y_scale
        self.shadings = [line.shading for line in chart.lines if line.shading]
        self.top = _TOP + (16 if self.shadings else 0)

    def svg(self) -> Markup:
        """The chart as one element."""
        chart = self.chart
        at = [(value, self._x(value)) for value in ticks(*chart.x_range)]
        parts = [
            *(self._band(band) for band in chart.bands),
            *self._y_axis(),
            *x_axis(at, chart.x_label, (_LEFT, WIDTH - _RIGHT), _HEIGHT - _BOTTOM),
            *(part for mark in chart.marks for part in self._mark(mark)),
            *(part for line in chart.lines for part in self._line(line)),
            *self._legend(),
            *(part for s in self.shadings[:1] for part in legend_above(scale_of(s), s.label, 14.0)),
        ]
        return drawing(parts, chart.name, _HEIGHT)

    def _x(self, value: float) -> float:
        start, stop = self.chart.x_range
        return _LEFT + (value - start) / (stop - start) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        height = _HEIGHT - self.top - _BOTTOM
        return self.top + (1 - float(self.scale.share(np.array(value)))) * height

    def _band(self, band: Band) -> Markup:
        left, right = self._x(band.start), self._x(band.stop)
        return tag(
            "rect", x=left, y=_TOP, width=max(0.0, right - left), height=_HEIGHT - _TOP - _BOTTOM,
            fill=BANDS[band.kind], class_="band", data_kind=band.kind,
        )  # fmt: skip

    def _y_axis(self) -> list[Markup]:
        marks: list[Markup] = []
        for value in self.chart.y_ticks:
            y = self._y(value)
            strong = self.chart.zero and value == 0
            marks.append(rule(_LEFT, y, WIDTH - _RIGHT, y, "#666" if strong else "#ddd"))
            marks.append(text(axis_number(value), _LEFT - 6, y + 4, anchor="end"))
        return [*marks, upright(self.chart.y_label, 12, (_TOP + _HEIGHT - _BOTTOM) / 2)]

    def _mark(self, mark: Mark) -> list[Markup]:
        """A dashed vertical line with a text next to it; nothing if it is outside the chart."""
        if not self.chart.x_range[0] <= mark.x <= self.chart.x_range[1]:
            return []
        x = self._x(mark.x)
        right = x > (_LEFT + WIDTH - _RIGHT) / 2
        return [
            rule(x, _TOP, x, _HEIGHT - _BOTTOM, "#888", stroke_dasharray="4 3", class_="mark"),
            words(mark.words, x - 4 if right else x + 4, _HEIGHT - _BOTTOM - 6, "#666",
                  "end" if right else "start"),
        ]  # fmt: skip

    def _legend(self) -> list[Markup]:
        """The legend with the names of the lines, placed where the lines are lowest."""
        start, stop = self.chart.x_range
        named = [line for line in self.chart.lines if self.chart.legend and line.name]
        drawn = [line for line in named if _runs(line.points)]
        highest = [-math.inf] * 3  # right, centre, left
        for p in (p for line in drawn for run in _runs(line.points) for p in run):
            third = 2 - int(2.999 * (p.x - start) / (stop - start))
            highest[third] = max(highest[third], p.y)
        where = highest.index(min(highest))
        x = (WIDTH - _RIGHT - 6, (_LEFT + WIDTH - _RIGHT) / 2, _LEFT + 6)[where]
        return [
            words(shortened(line.name, 56), x, _TOP + 14 * (index + 1), line.colour.web,
                  ("end", "middle", "start")[where])
            for index, line in enumerate(drawn)
        ]  # fmt: skip

    def _line(self, line: Line) -> list[Markup]:
        drawn: list[Markup] = []
        many, ink = len(line.points) > _MANY, line.colour.web
        fills = _fills(line)
        for run in _runs(line.points):
            places = [(self._x(p.x), self._y(p.y)) for p in run]
            if self.chart.errors:
                drawn.append(self._shade(run, ink))
            if line.filled:
                base = _HEIGHT - _BOTTOM
                around = [(places[0][0], base), *places, (places[-1][0], base)]
                drawn.append(tag("polygon", points=_path(around), fill=ink, opacity="0.22"))
            drawn.append(
                tag("polyline", points=_path(places), fill="none", stroke=ink,
                    stroke_width="1.2" if many else "1.5", stroke_linejoin="round", class_="line",
                    stroke_opacity="0.4" if line.shading else None, data_name=line.name)
            )  # fmt: skip
            drawn += [
                tag("circle", tag("title", p.label), cx=x, cy=y, r="4" if line.shading else "2.6",
                    fill=next(fills), fill_opacity="0" if many and len(run) > 1 else None,
                    class_="point", data_label=p.label)
                for p, (x, y) in zip(run, places, strict=True)
            ]  # fmt: skip
        return drawn + self._ends(line)

    def _ends(self, line: Line) -> list[Markup]:
        """Rings around the first and the last point, with their names above and below."""
        drawn = [p for run in _runs(line.points) for p in run]
        if line.ends is None or not drawn:
            return []
        named = list(zip((drawn[0], drawn[-1]), line.ends, (-9, 17), strict=True))
        parts: list[Markup] = []
        for point, name, below in named[: 2 if len(drawn) > 1 else 1]:
            x, y = self._x(point.x), self._y(point.y)
            side = "start" if x < _LEFT + 60 else "end" if x > WIDTH - _RIGHT - 60 else "middle"
            below = -9 if y > _HEIGHT - _BOTTOM - 20 else 17 if y < self.top + 12 else below
            parts.append(tag("circle", cx=x, cy=y, r="6" if line.shading else "5", fill="none",
                             stroke=line.colour.web, stroke_width="1.5", class_="end"))  # fmt: skip
            parts.append(words(shortened(name, 28), x, y + below, line.colour.web, side))
        return parts

    def _shade(self, run: Sequence[Point], ink: str) -> Markup:
        """A band of two standard errors to either side."""
        ends = [(p, 2 * p.error if math.isfinite(p.error) else 0.0) for p in run]
        there = [(self._x(p.x), self._y(p.y + e)) for p, e in ends]
        lowest = self.scale.low if self.scale.log else -math.inf
        back = [(self._x(p.x), self._y(max(p.y - e, lowest))) for p, e in reversed(ends)]
        return tag("polygon", points=_path([*there, *back]), fill=ink, opacity="0.18")


def _fills(line: Line) -> Iterator[str]:
    """The colours of the drawn points, in order."""
    drawable = [math.isfinite(p.x) and math.isfinite(p.y) for p in line.points]
    if line.shading is None:
        return iter([line.colour.web] * sum(drawable))
    scale = scale_of(line.shading)
    shares = scale.share(np.asarray(line.shading.values, dtype=float)).tolist()
    return iter(
        HOLE if math.isnan(share) else shade(share, scale.table)
        for share, drawn in zip(shares, drawable, strict=True)
        if drawn
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in places)


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Runs of consecutive points that can be drawn."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point.x) and math.isfinite(point.y):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
