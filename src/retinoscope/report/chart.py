"""Line charts as SVG: drawn here once, alive in the page through small scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from retinoscope.plots.bands import BANDS
from retinoscope.report.markup import tag

_WIDTH, _HEIGHT = 460.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 12.0, 12.0, 40.0


@dataclass(frozen=True)
class Point:
    """One value: where it lies, how sure it is, and what a reader sees when pointing at it."""

    x: float
    y: float
    error: float = math.nan
    label: str = ""


@dataclass(frozen=True)
class Line:
    """Points joined in order; those that are not finite leave a gap."""

    points: Sequence[Point]
    colour: str = "#333"
    name: str = ""


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis with a background, for the kind of a unit."""

    start: float
    stop: float
    kind: str


@dataclass(frozen=True)
class Mark:
    """A place on the x axis where something ends or begins, and what."""

    x: float
    words: str


@dataclass(frozen=True)
class Chart:
    """What a chart shows; :meth:`svg` draws it."""

    lines: Sequence[Line]
    x_label: str
    y_label: str
    bands: Sequence[Band] = ()
    zero: bool = False
    """Whether a line at y = 0 helps to read it."""
    y_range: tuple[float, float] | None = None
    name: str = ""
    x_range: tuple[float, float] = (0.0, 1.0)
    marks: Sequence[Mark] = ()
    legend: bool = False
    """Whether to name the lines within the chart: where they are few, and no units."""

    @property
    def shaded(self) -> bool:
        """Whether standard errors are drawn: of a single line; several would hide each other."""
        return len(self.lines) == 1 and any(
            math.isfinite(p.error) and p.error > 0 for p in self.lines[0].points
        )

    def svg(self) -> Markup:
        """The chart as one element."""
        low, high = self.y_range or value_range(self.lines, self.zero)
        parts = [
            *(self._band(band) for band in self.bands),
            *self._y_axis(low, high),
            *self._x_axis(),
            *(part for mark in self.marks for part in self._mark(mark)),
            *(part for line in self.lines for part in self._line(line, low, high)),
            *self._legend(),
        ]
        return tag(
            "svg",
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
            class_="chart",
            role="img",
            aria_label=self.name,
            font_family="system-ui, sans-serif",
            font_size="11",
        )

    def _x(self, value: float) -> float:
        start, stop = self.x_range
        return _LEFT + (value - start) / (stop - start) * (_WIDTH - _LEFT - _RIGHT)

    @staticmethod
    def _y(value: float, low: float, high: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def _band(self, band: Band) -> Markup:
        left, right = self._x(band.start), self._x(band.stop)
        return tag(
            "rect",
            x=left,
            y=_TOP,
            width=max(0.0, right - left),
            height=_HEIGHT - _TOP - _BOTTOM,
            fill=BANDS.get(band.kind, "#fff"),
            class_="band",
            data_kind=band.kind,
        )

    def _y_axis(self, low: float, high: float) -> list[Markup]:
        marks: list[Markup] = []
        for value in ticks(low, high):
            y = self._y(value, low, high)
            strong = self.zero and value == 0
            marks.append(_rule(_LEFT, y, _WIDTH - _RIGHT, y, "#666" if strong else "#ddd"))
            marks.append(
                tag("text", f"{value:g}".replace("-", "−"), x=_LEFT - 6, y=y + 4,
                    text_anchor="end", fill="#444")
            )  # fmt: skip
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        label = tag("text", self.y_label, transform=f"translate(12 {middle:g}) rotate(-90)",
                    text_anchor="middle", fill="#222")  # fmt: skip
        return [*marks, label]

    def _x_axis(self) -> list[Markup]:
        base = _HEIGHT - _BOTTOM
        marks = [_rule(_LEFT, base, _WIDTH - _RIGHT, base, "#666")]
        for value in ticks(*self.x_range):
            x = self._x(value)
            marks.append(_rule(x, base, x, base + 4, "#666"))
            marks.append(
                tag("text", f"{value:g}", x=x, y=base + 16, text_anchor="middle", fill="#444")
            )
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        label = tag("text", self.x_label, x=middle, y=_HEIGHT - 6, text_anchor="middle",
                    fill="#222")  # fmt: skip
        return [*marks, label]

    def _mark(self, mark: Mark) -> list[Markup]:
        """A dashed line from top to bottom with words beside it; none where it is out of sight."""
        if not self.x_range[0] <= mark.x <= self.x_range[1]:
            return []
        x = self._x(mark.x)
        right = x > (_LEFT + _WIDTH - _RIGHT) / 2
        return [
            _rule(x, _TOP, x, _HEIGHT - _BOTTOM, "#888", stroke_dasharray="4 3", class_="mark"),
            _words(mark.words, x - 4 if right else x + 4, _HEIGHT - _BOTTOM - 6, "#666",
                   "end" if right else "start"),
        ]  # fmt: skip

    def _legend(self) -> list[Markup]:
        """The names of the lines that are drawn, in their colours, at the upper right."""
        drawn = [line for line in self.lines if self.legend and _runs(line.points)]
        return [
            _words(line.name, _WIDTH - _RIGHT - 6, _TOP + 14 * (place + 1), line.colour, "end")
            for place, line in enumerate(drawn)
        ]

    def _line(self, line: Line, low: float, high: float) -> list[Markup]:
        drawn: list[Markup] = []
        for run in _runs(line.points):
            places = [(self._x(p.x), self._y(p.y, low, high)) for p in run]
            if self.shaded:
                drawn.append(self._shade(run, line.colour, low, high))
            path = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
            drawn.append(
                tag("polyline", points=path, fill="none", stroke=line.colour, stroke_width="1.5",
                    class_="line", data_name=line.name)
            )  # fmt: skip
            drawn += [
                tag("circle", tag("title", p.label), cx=x, cy=y, r="2.6", fill=line.colour,
                    class_="point", data_label=p.label)
                for p, (x, y) in zip(run, places, strict=True)
            ]  # fmt: skip
        return drawn

    def _shade(self, run: Sequence[Point], colour: str, low: float, high: float) -> Markup:
        """Two standard errors to either side."""
        ends = [(p, 2 * p.error if math.isfinite(p.error) else 0.0) for p in run]
        there = [(self._x(p.x), self._y(p.y + e, low, high)) for p, e in ends]
        back = [(self._x(p.x), self._y(p.y - e, low, high)) for p, e in reversed(ends)]
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in [*there, *back])
        return tag("polygon", points=path, fill=colour, opacity="0.18")


def value_range(lines: Sequence[Line], zero: bool = False) -> tuple[float, float]:
    """A range that holds all finite values with some room, and 0 if asked."""
    values = [p.y for line in lines for p in line.points if math.isfinite(p.y)]
    if len(lines) == 1:  # then its errors are drawn too
        for p in lines[0].points:
            if math.isfinite(p.y) and math.isfinite(p.error):
                values += [p.y - 2 * p.error, p.y + 2 * p.error]
    values += [0.0] if zero or not values else []
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or max(1.0, abs(high)) * 0.1
    return low - room, high + room


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
    return [round(n * step, 12) + 0.0 for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, **attributes: object) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width="0.8", **attributes)


def _words(text: str, x: float, y: float, colour: str, anchor: str) -> Markup:
    """Words among curves: the white around them keeps them readable."""
    return tag("text", text, x=x, y=y, fill=colour, text_anchor=anchor, stroke="#fff",
               stroke_width="3", paint_order="stroke")  # fmt: skip


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Stretches of neighbouring points that can be drawn."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point.x) and math.isfinite(point.y):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
