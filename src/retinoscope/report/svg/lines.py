"""Line charts as SVG: drawn here once, alive in the page through small scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from retinoscope.plots.bands import BANDS
from retinoscope.report.markup import tag

WIDTH = 460.0
_HEIGHT = 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 12.0, 12.0, 40.0
_MANY = 60
"""Points beyond which a line is thin and its dots are only seen when pointed at."""


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
    filled: bool = False
    """Whether what lies below it counts: a density."""
    ends: tuple[str, str] | None = None
    """Names of the first and the last point, for a path."""


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
    def errors(self) -> str:
        """How standard errors are drawn: of a single line; several would hide each other."""
        return "Shaded" if len(self.lines) == 1 and sure(self.lines[0].points) else ""

    def svg(self) -> Markup:
        """The chart as one element."""
        low, high = self.y_range or value_range(self.lines, self.zero)
        at = [(value, self._x(value)) for value in ticks(*self.x_range)]
        parts = [
            *(self._band(band) for band in self.bands),
            *self._y_axis(low, high),
            *x_axis(at, self.x_label, (_LEFT, WIDTH - _RIGHT), _HEIGHT - _BOTTOM),
            *(part for mark in self.marks for part in self._mark(mark)),
            *(part for line in self.lines for part in self._line(line, low, high)),
            *self._legend(),
        ]
        return drawing(parts, self.name, _HEIGHT)

    def _x(self, value: float) -> float:
        start, stop = self.x_range
        return _LEFT + (value - start) / (stop - start) * (WIDTH - _LEFT - _RIGHT)

    @staticmethod
    def _y(value: float, low: float, high: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def _band(self, band: Band) -> Markup:
        left, right = self._x(band.start), self._x(band.stop)
        return tag(
            "rect", x=left, y=_TOP, width=max(0.0, right - left), height=_HEIGHT - _TOP - _BOTTOM,
            fill=BANDS.get(band.kind, "#fff"), class_="band", data_kind=band.kind,
        )  # fmt: skip

    def _y_axis(self, low: float, high: float) -> list[Markup]:
        marks: list[Markup] = []
        for value in ticks(low, high):
            y = self._y(value, low, high)
            strong = self.zero and value == 0
            marks.append(rule(_LEFT, y, WIDTH - _RIGHT, y, "#666" if strong else "#ddd"))
            marks.append(text(plain(value), _LEFT - 6, y + 4, anchor="end"))
        return [*marks, upright(self.y_label, 12, (_TOP + _HEIGHT - _BOTTOM) / 2)]

    def _mark(self, mark: Mark) -> list[Markup]:
        """A dashed line from top to bottom with words beside it; none where it is out of sight."""
        if not self.x_range[0] <= mark.x <= self.x_range[1]:
            return []
        x = self._x(mark.x)
        right = x > (_LEFT + WIDTH - _RIGHT) / 2
        return [
            rule(x, _TOP, x, _HEIGHT - _BOTTOM, "#888", stroke_dasharray="4 3", class_="mark"),
            words(mark.words, x - 4 if right else x + 4, _HEIGHT - _BOTTOM - 6, "#666",
                  "end" if right else "start"),
        ]  # fmt: skip

    def _legend(self) -> list[Markup]:
        """The names of the lines that are drawn, in their colours, where lines are lowest."""
        drawn = [line for line in self.lines if self.legend and _runs(line.points)]
        highest = [-math.inf] * 3  # at the right, in the middle, at the left
        for p in (p for line in drawn for run in _runs(line.points) for p in run):
            third = 2 - int(2.999 * (p.x - self.x_range[0]) / (self.x_range[1] - self.x_range[0]))
            highest[third] = max(highest[third], p.y)
        where = highest.index(min(highest))
        x = (WIDTH - _RIGHT - 6, (_LEFT + WIDTH - _RIGHT) / 2, _LEFT + 6)[where]
        return [
            words(shortened(line.name, 56), x, _TOP + 14 * (place + 1), line.colour,
                  ("end", "middle", "start")[where])
            for place, line in enumerate(drawn)
        ]  # fmt: skip

    def _line(self, line: Line, low: float, high: float) -> list[Markup]:
        drawn: list[Markup] = []
        many = len(line.points) > _MANY
        for run in _runs(line.points):
            places = [(self._x(p.x), self._y(p.y, low, high)) for p in run]
            if self.errors:
                drawn.append(self._shade(run, line.colour, low, high))
            if line.filled:
                base = _HEIGHT - _BOTTOM
                around = [(places[0][0], base), *places, (places[-1][0], base)]
                drawn.append(tag("polygon", points=_path(around), fill=line.colour, opacity="0.22"))
            drawn.append(
                tag("polyline", points=_path(places), fill="none", stroke=line.colour,
                    stroke_width="1.2" if many else "1.5", stroke_linejoin="round", class_="line",
                    data_name=line.name)
            )  # fmt: skip
            drawn += [
                tag("circle", tag("title", p.label), cx=x, cy=y, r="2.6", fill=line.colour,
                    fill_opacity="0" if many and len(run) > 1 else None, class_="point",
                    data_label=p.label)
                for p, (x, y) in zip(run, places, strict=True)
            ]  # fmt: skip
        return drawn + self._ends(line, low, high)

    def _ends(self, line: Line, low: float, high: float) -> list[Markup]:
        """Rings around the first and the last point, with their names above and below."""
        drawn = [p for run in _runs(line.points) for p in run]
        if line.ends is None or not drawn:
            return []
        named = list(zip((drawn[0], drawn[-1]), line.ends, (-9, 17), strict=True))
        parts: list[Markup] = []
        for point, name, below in named[: 2 if len(drawn) > 1 else 1]:
            x, y = self._x(point.x), self._y(point.y, low, high)
            side = "start" if x < _LEFT + 60 else "end" if x > WIDTH - _RIGHT - 60 else "middle"
            below = -9 if y > _HEIGHT - _BOTTOM - 20 else 17 if y < _TOP + 12 else below
            parts.append(tag("circle", cx=x, cy=y, r="5", fill="none", stroke=line.colour,
                             stroke_width="1.5", class_="end"))  # fmt: skip
            parts.append(words(shortened(name, 28), x, y + below, line.colour, side))
        return parts

    def _shade(self, run: Sequence[Point], colour: str, low: float, high: float) -> Markup:
        """Two standard errors to either side."""
        ends = [(p, 2 * p.error if math.isfinite(p.error) else 0.0) for p in run]
        there = [(self._x(p.x), self._y(p.y + e, low, high)) for p, e in ends]
        back = [(self._x(p.x), self._y(p.y - e, low, high)) for p, e in reversed(ends)]
        return tag("polygon", points=_path([*there, *back]), fill=colour, opacity="0.18")


def value_range(lines: Sequence[Line], zero: bool = False) -> tuple[float, float]:
    """A range that holds all finite values with some room, and 0 if asked."""
    values = [p.y for line in lines for p in line.points if math.isfinite(p.y)]
    if len(lines) == 1:  # then its errors are drawn too
        for p in lines[0].points:
            if math.isfinite(p.y) and math.isfinite(p.error):
                values += [p.y - 2 * p.error, p.y + 2 * p.error]
    values += [0.0] if zero or not values else []
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    below = 0.0 if any(line.filled for line in lines) and high > low else room
    return low - below, high + room


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


def drawing(parts: Sequence[Markup], name: str, height: float, kind: str = "chart") -> Markup:
    """Parts as one picture of the width that all charts have."""
    return tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}", class_=kind, role="img", aria_label=name,
        font_family="system-ui, sans-serif", font_size="11",
    )  # fmt: skip


def x_axis(
    places: Sequence[tuple[float, float]], label: str, ends: tuple[float, float], base: float
) -> list[Markup]:
    """A rule at the bottom with a mark for each pair of a value and where it lies."""
    marks = [rule(*(ends[0], base, ends[1], base), "#666")]
    for value, x in places:
        marks.append(rule(x, base, x, base + 4, "#666"))
        marks.append(text(plain(value), x, base + 16))
    return [*marks, text(label, sum(ends) / 2, base + 34, colour="#222")]


def rule(x1: float, y1: float, x2: float, y2: float, colour: str, **attributes: object) -> Markup:
    """A thin straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width="0.8", **attributes)


def text(content: str, x: float, y: float, anchor: str = "middle", colour: str = "#444") -> Markup:
    """Words beside a chart."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, fill=colour)


def upright(content: str, x: float, y: float) -> Markup:
    """Words that are read from bottom to top."""
    return tag("text", content, transform=f"translate({x:g} {y:g}) rotate(-90)",
               text_anchor="middle", fill="#222")  # fmt: skip


def words(content: str, x: float, y: float, colour: str, anchor: str) -> Markup:
    """Words among curves: the white around them keeps them readable."""
    halo = {"stroke": "#fff", "stroke_width": "3", "paint_order": "stroke"}
    return tag("text", content, x=x, y=y, fill=colour, text_anchor=anchor, **halo)


def plain(value: float) -> str:
    """A value on an axis; large ones as powers of ten, so that they fit."""
    short = f"{value:g}" if abs(value) < 1e5 else f"{value:.5g}"
    return short.replace("e+0", "e").replace("e+", "e").replace("e-0", "e−").replace("-", "−")


def shortened(name: str, most: int) -> str:
    """A name of about so many characters at most: what tells names apart is at their ends."""
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in places)


def sure(points: Sequence[Point]) -> bool:
    """Whether any of them says how sure it is."""
    return any(math.isfinite(p.error) and p.error > 0 for p in points)


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Stretches of neighbouring points that can be drawn."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point.x) and math.isfinite(point.y):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
