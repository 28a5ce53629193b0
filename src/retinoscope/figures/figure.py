"""The content of a figure: lines, bars, a map, a matrix or images, with ranges and colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from retinoscope.figures.colours import HOLE, Table, colormap, resolved
from retinoscope.figures.ranges import log_range, value_range
from retinoscope.figures.scale import Scale, contours, log_ticks, ticks


@dataclass(frozen=True)
class Point:
    """One value: its coordinates, its standard error, and the hint that the report shows for it."""

    x: float
    y: float
    error: float = math.nan
    label: str = ""


@dataclass(frozen=True)
class Colour:
    """A colour in a table: a position from 0 to 1, or an index into a categorical table."""

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
    """Values that determine the colours of the points of a line."""

    values: np.ndarray
    label: str
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """Points joined in order; values that are not finite leave a gap."""

    points: Sequence[Point]
    colour: Colour = Colour()
    name: str = ""
    filled: bool = False
    """Whether to fill the area under the line, as for a density."""
    ends: tuple[str, str] | None = None
    """Names of the first and the last point, for a path."""
    names: Sequence[str] = ()
    """Names of all points, for a path."""
    shading: Shading | None = None

    def column(self, name: str) -> np.ndarray:
        """``x``, ``y`` or ``error`` of all points."""
        return np.array([getattr(point, name) for point in self.points], dtype=float)


@dataclass(frozen=True)
class Band:
    """An interval of the x axis with a background, for the kind of a unit."""

    start: float
    stop: float
    kind: str


@dataclass(frozen=True)
class Mark:
    """A marked coordinate on the x axis, with a text."""

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
    """Whether to draw a line at y = 0."""
    y_range: tuple[float, float] | None = None
    name: str = ""
    x_range: tuple[float, float] = (0.0, 1.0)
    marks: Sequence[Mark] = ()
    legend: bool = False
    """Whether to show a legend: if there are few lines and they are not units."""
    log: bool = False
    """Whether the y axis is logarithmic; values of 0 or less are then NaN."""

    @property
    def errors(self) -> str:
        """How standard errors are drawn: only for a single line, since several would overlap."""
        return "Shaded" if len(self.lines) == 1 and sure(self.lines[0].points) else ""

    @property
    def y_limits(self) -> tuple[float, float]:
        """The two ends of the y axis."""
        return self.y_range or self.own_range

    @property
    def own_range(self) -> tuple[float, float]:
        """The range of its own values, whatever axis it shares with others."""
        return log_range(self.lines) if self.log else value_range(self.lines, self.zero)

    @property
    def y_ticks(self) -> list[float]:
        """Round values along the y axis."""
        return (log_ticks if self.log else ticks)(*self.y_limits)

    @property
    def y_scale(self) -> Scale:
        """The mapping from values to positions along the y axis, from 0 to 1."""
        return Scale(*self.y_limits, self.log)


@dataclass(frozen=True)
class Bars:
    """One bar per name, from top to bottom in the given order; whiskers are two standard errors."""

    points: Sequence[Point]
    """The y of each point is the length of its bar."""
    names: Sequence[str]
    label: str
    name: str = ""
    x_range: tuple[float, float] | None = None

    @property
    def errors(self) -> str:
        """How standard errors are drawn."""
        return "Whiskers" if sure(self.points) else ""

    def range(self) -> tuple[float, float]:
        """The range of all bars, including 0 and the whiskers, with a margin."""
        low, high = value_range([Line(self.points)], zero=True)
        negative = any(p.y < 0 for p in self.points)
        return low if negative else 0.0, high


@dataclass(frozen=True)
class IsoLine:
    """A contour line of a map: lines through points (n, 2) in the coordinates of its axes."""

    level: float
    lines: Sequence[np.ndarray]
    ink: str
    """The line colour: light on dark colours, dark on light ones."""


@dataclass(frozen=True, eq=False)
class Map:
    """Values over two axes as a heat map with contour lines."""

    x: np.ndarray
    """Coordinates in ascending order, like those of y."""
    y: np.ndarray
    values: np.ndarray
    """One row per y."""
    hints: Sequence[Sequence[str]]
    """The hint that the report shows for each cell."""
    labels: tuple[str, str, str]
    """The labels of x, y and the values."""
    name: str = ""
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None

    errors: ClassVar[str] = ""

    def iso_lines(self) -> list[IsoLine]:
        """Contour lines at the tick values of the colour scale, interpolated linearly on it."""
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
        """The edges of the cells along x and y, half way between neighbours."""
        return _edges(self.x), _edges(self.y)

    @property
    def centre(self) -> bool:
        """Whether the origin is inside the map; it is then marked with a cross."""
        return all(edges[0] <= 0 <= edges[-1] for edges in self.edges)


@dataclass(frozen=True, eq=False)
class Matrix:
    """One value for each pair of a named row and a named column; the first row is at the top."""

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    hints: Sequence[Sequence[str]]
    labels: tuple[str, str, str]
    """The labels of columns, rows and values."""
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
        """A line colour that is visible on the colours of the cells."""
        return "#1c2430" if self.diverging else "#ffffff"


@dataclass(frozen=True, eq=False)
class Images:
    """Small images side by side: (N, H, W) coloured by value, or (N, H, W, 3) in RGB.

    With ``choices``, there is a further first axis, along which one entry is shown at a time.
    """

    values: np.ndarray
    captions: Sequence[str]
    label: str
    name: str = ""
    scale: Scale | None = None
    diverging: bool = False
    limits: tuple[float, float] | None = None
    choices: Sequence[str] = ()
    under: np.ndarray | None = None
    """RGB images to draw below them, each for the same number of consecutive images."""

    errors: ClassVar[str] = ""

    @property
    def plain(self) -> bool:
        """Whether they are RGB images."""
        return self.values.ndim - bool(self.choices) == 4

    @property
    def tall(self) -> float:
        """The height of an image divided by its width."""
        height, width = self.values.shape[bool(self.choices) :][1:3]
        return height / width

    @property
    def columns(self) -> int:
        """The number of images per row."""
        return min(6, len(self.captions))

    @property
    def rows(self) -> int:
        """The number of rows of images."""
        return -(-len(self.captions) // self.columns)

    def pixels(self, index: int, choice: int = 0) -> np.ndarray:
        """The RGB pixels (H, W, 3) of an image, from 0 to 255."""
        values = self.values[choice, index] if self.choices else self.values[index]
        if self.plain:
            return _bytes(values)
        scale = scale_of(self)
        shares = np.ma.masked_invalid(scale.share(values))
        table = colormap(scale.table).with_extremes(bad=HOLE)
        return table(shares, bytes=True)[..., :3]

    def has(self, index: int, choice: int) -> bool:
        """Whether a variant of an image has any value."""
        return not self.choices or bool(np.isfinite(self.values[choice, index]).any())

    def below(self, index: int) -> np.ndarray | None:
        """The RGB pixels of the image to draw below, from 0 to 255; None if there is none."""
        if self.under is None or not len(self.under):
            return None
        return _bytes(self.under[index * len(self.under) // len(self.captions)])


Chart = Lines | Bars | Map | Matrix | Images


@dataclass(frozen=True)
class Figure:
    """One array of one result: the chart, and its numbers as a table."""

    field: str
    title: str
    chart: Chart
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def scale_of(chart: Map | Matrix | Images | Shading) -> Scale:
    """The colour scale: one shared with its neighbours, or its own."""
    return chart.scale or Scale.of(chart.values, chart.diverging, chart.limits)


def sure(points: Sequence[Point]) -> bool:
    """Whether any point has a standard error."""
    return any(math.isfinite(p.error) and p.error > 0 for p in points)


def _bytes(colours: np.ndarray) -> np.ndarray:
    return np.rint(255 * np.clip(np.nan_to_num(colours), 0, 1)).astype(np.uint8)


def _edges(places: np.ndarray) -> np.ndarray:
    """The edges of cells: half way between neighbours, and equally far beyond the ends."""
    half = np.diff(places) / 2
    first, last = places[:1] - half[:1], places[-1:] + half[-1:]
    return np.concatenate([first, places[:-1] + half, last])
