"""What a figure shows: lines, bars, a map, a matrix or images, with their ranges and colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from retinoscope.figures.colours import HOLE, Table, colormap, resolved
from retinoscope.figures.scale import Scale, contours


@dataclass(frozen=True)
class Point:
    """One value: where it lies, its standard error, and what a reader of the page sees there."""

    x: float
    y: float
    error: float = math.nan
    label: str = ""


@dataclass(frozen=True)
class Colour:
    """A colour of a table: a share from 0 to 1, or an index of a categorical one."""

    table: Table | None = None
    at: float = 0.0

    @property
    def web(self) -> str:
        """As ``#rrggbb``.

        Example:
            >>> Colour("sequential", 0.0).web
            '#440154'
        """
        return resolved(self.table, self.at)


@dataclass(frozen=True, eq=False)
class Shading:
    """Values that colour the points of a line."""

    values: np.ndarray
    label: str
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """Points joined in order; those that are not finite leave a gap."""

    points: Sequence[Point]
    colour: Colour = Colour()
    name: str = ""
    filled: bool = False
    """Whether the area below it counts: a density."""
    ends: tuple[str, str] | None = None
    """Names of the first and the last point, for a path."""
    names: Sequence[str] = ()
    """Of all points, for a path."""
    shading: Shading | None = None

    def column(self, name: str) -> np.ndarray:
        """``x``, ``y`` or ``error`` of all points."""
        return np.array([getattr(point, name) for point in self.points], dtype=float)


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis with a background, for the kind of a unit."""

    start: float
    stop: float
    kind: str


@dataclass(frozen=True)
class Mark:
    """A coordinate on the x axis where something ends or begins, and what."""

    x: float
    words: str


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis."""

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
    """Whether lines are named within the figure: where they are few, and no units."""

    @property
    def errors(self) -> str:
        """How standard errors are drawn: of a single line; several would hide each other."""
        return "Shaded" if len(self.lines) == 1 and sure(self.lines[0].points) else ""

    @property
    def y_limits(self) -> tuple[float, float]:
        """Both ends of the y axis."""
        return self.y_range or value_range(self.lines, self.zero)


@dataclass(frozen=True)
class Bars:
    """A bar per name, from top to bottom as given; whiskers are two standard errors."""

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


@dataclass(frozen=True)
class IsoLine:
    """Where a map has a value: lines through points (n, 2) in the coordinates of its axes."""

    level: float
    lines: Sequence[np.ndarray]
    ink: str
    """Light on dark colours, dark on light ones."""


@dataclass(frozen=True, eq=False)
class Map:
    """Values over two axes as a heat map with iso-lines."""

    x: np.ndarray
    """Coordinates in ascending order, as those of y."""
    y: np.ndarray
    values: np.ndarray
    """One row per y."""
    hints: Sequence[Sequence[str]]
    """What a reader of the page sees when pointing at a cell."""
    labels: tuple[str, str, str]
    """Of x, of y and of the values."""
    name: str = ""
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None

    errors: ClassVar[str] = ""

    def iso_lines(self) -> list[IsoLine]:
        """At the numbers beside the colours; straight in shares of the scale between cells."""
        scale = scale_of(self)
        shares = scale.share(self.values)
        found = []
        for value in scale.levels():
            level = float(scale.share(np.array(value)))
            if lines := contours(shares, level, self.x, self.y):
                light = level < 0.6 and not scale.diverging
                found.append(IsoLine(value, lines, "#ffffff" if light else "#1c2430"))
        return found

    @property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Where cells end along x and y: half way between neighbours."""
        return _edges(self.x), _edges(self.y)

    @property
    def centre(self) -> bool:
        """Whether the origin is in sight, which is marked by a cross."""
        return all(edges[0] <= 0 <= edges[-1] for edges in self.edges)


@dataclass(frozen=True, eq=False)
class Matrix:
    """A value for each pair of a named row and a named column; the first row is at the top."""

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    hints: Sequence[Sequence[str]]
    labels: tuple[str, str, str]
    """Of columns, of rows and of the values."""
    name: str = ""
    row_borders: Sequence[int] = ()
    """Rows before which a group begins, such as a stage."""
    column_borders: Sequence[int] = ()
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None

    errors: ClassVar[str] = ""

    @property
    def border_ink(self) -> str:
        """A colour that is seen on those of the cells."""
        return "#1c2430" if self.diverging else "#ffffff"


@dataclass(frozen=True, eq=False)
class Images:
    """Small images side by side: (N, H, W) coloured by value, or (N, H, W, 3) as they are."""

    values: np.ndarray
    captions: Sequence[str]
    label: str
    name: str = ""
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None

    errors: ClassVar[str] = ""

    @property
    def plain(self) -> bool:
        """Whether they are red, green and blue themselves."""
        return self.values.ndim == 4

    @property
    def columns(self) -> int:
        """How many stand beside each other."""
        return min(6, len(self.values))

    def pixels(self, index: int) -> np.ndarray:
        """Red, green and blue (H, W, 3) of an image, each from 0 to 255."""
        values = self.values[index]
        if self.plain:
            return np.rint(255 * np.clip(np.nan_to_num(values), 0, 1)).astype(np.uint8)
        scale = scale_of(self)
        shares = np.ma.masked_invalid(scale.share(values))
        table = colormap(scale.table).with_extremes(bad=HOLE)
        return table(shares, bytes=True)[..., :3]


Chart = Lines | Bars | Map | Matrix | Images


@dataclass(frozen=True)
class Figure:
    """One array of one result: what is drawn, and its numbers as a table."""

    field: str
    title: str
    chart: Chart
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def scale_of(chart: Map | Matrix | Images | Shading) -> Scale:
    """Its scale: one that it shares with its neighbours, or its own."""
    return chart.scale or Scale.of(chart.values, chart.diverging, chart.limits)


def sure(points: Sequence[Point]) -> bool:
    """Whether any of them has a standard error."""
    return any(math.isfinite(p.error) and p.error > 0 for p in points)


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


def _edges(places: np.ndarray) -> np.ndarray:
    """The ends of cells: half way between neighbours, and as far beyond the first and the last."""
    half = np.diff(places) / 2
    first, last = places[:1] - half[:1], places[-1:] + half[-1:]
    return np.concatenate([first, places[:-1] + half, last])
