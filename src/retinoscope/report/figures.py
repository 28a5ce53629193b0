"""Charts of a result, drawn from what its fields say about their axes: none is made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retinoscope.core.result import Result
from retinoscope.report.chart import Band, Chart, Line, Mark, Point, value_range
from retinoscope.report.map_chart import Bars, MapChart
from retinoscope.report.surface import Scale, shade

_APART = ("#c2571a", "#1f4e79", "#2f7d4f", "#7a4a94")
"""For few lines that are no series, so that each is easily told from the others."""
_INK = "#1f4e79"

Drawing = Chart | Bars | MapChart


@dataclass(frozen=True)
class Figure:
    """One array of one result as a chart, with its numbers."""

    field: str
    title: str
    chart: Drawing
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class _Array:
    """An array of a result with what its field says; older files say less."""

    def __init__(self, result: Result, name: str, about: Mapping[str, Any]) -> None:
        self.result, self.name, self.about = result, name, about
        self.values: np.ndarray = np.asarray(getattr(result, name))
        self.axis: str = about["axes"][0]
        self.unit: str = about["unit"]
        self.title: str = about["title"] or name.replace("_", " ")
        self.errors = self.other("error", np.full(self.values.shape, np.nan))
        self.error_head = ("standard error",) if about["error"] else ()

    def other(self, key: str, missing: Any = ()) -> Any:
        """The field that is named there."""
        return getattr(self.result, self.about[key]) if self.about.get(key) else missing

    def unit_of(self, key: str) -> str:
        """The unit of the field that is named there."""
        name = self.about.get(key)
        return self.result.described()[name].metadata["unit"] if name else ""

    def error(self, value: float) -> tuple[str, ...]:
        """A cell that only those have who say how sure they are."""
        return (number(value),) if self.about["error"] else ()

    @property
    def drawable(self) -> bool:
        """Whether it is a map, a value per place, or a curve per unit or other row with a name.

        Where all is missing there is nothing to draw; a map of one row is a line, and has its own.
        """
        if not self.about["figure"] or np.isnan(self.values).all():
            return False
        if self.about.get("y"):
            return self.values.ndim == 2 and min(self.values.shape) > 1
        return self.values.ndim == 1 or (self.values.ndim == 2 and bool(self.names))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rows."""
        return _units(self.result) if self.axis == "unit" else self.other("rows")

    @property
    def about_rows(self) -> list[tuple[str, ...]]:
        """What is known of each row: the name, and of a unit its kind."""
        kinds = [_kinds(self.result)] if self.axis == "unit" else []
        return list(zip(self.names, *kinds, strict=True))

    @property
    def x_label(self) -> str:
        """What lies along x: the last axis with its unit, or for a path what its places are."""
        last, unit = self.about["axes"][-1], self.unit_of("x")
        if self.about.get("points") and self.about["x"]:
            return unit or self.about["x"].replace("_", " ")
        return f"{last} ({unit})" if unit else last


def figures(result: Result) -> list[Figure]:
    """A figure for each array that is worth one, in the order of the fields."""
    arrays = [_Array(result, name, f.metadata) for name, f in result.described().items()]
    return [_figure(array) for array in arrays if array.drawable]


def _figure(array: _Array) -> Figure:
    if array.about.get("y"):
        return _map(array)
    if array.values.ndim == 2:
        return _curves(array)
    if array.axis == "unit":
        return _by_depth(array)
    return _bars(array) if array.about.get("rows") else _single(array)


def _map(array: _Array) -> Figure:
    """Values over two axes, both in ascending order."""
    along, up = (np.asarray(array.other(key), dtype=float) for key in ("x", "y"))
    columns, rows = (np.argsort(p)[: int(np.isfinite(p).sum())] for p in (along, up))
    xs, ys = along[columns], up[rows]
    values = array.values[np.ix_(rows, columns)].astype(float)
    x_label, y_label = (array.unit_of(key) or array.about[key] for key in ("x", "y"))
    cells = [
        [(number(x), number(y), number(v) if math.isfinite(v) else "not finite")
         for x, v in zip(xs, row, strict=True)]
        for y, row in zip(ys, values, strict=True)
    ]  # fmt: skip
    hints = [[f"{x_label} {x} · {y_label} {y} · {v}" for x, y, v in row] for row in cells]
    labels = (x_label, y_label, array.unit)
    chart = MapChart(xs, ys, values, hints, labels, array.title)
    return Figure(array.name, array.title, chart, labels, tuple(c for row in cells for c in row))


def _bars(array: _Array) -> Figure:
    """A value for each of a few named parts, in the order in which they are given."""
    points = [
        Point(float(place), float(v), float(e), f"{part} · {number(v)}{_plus_minus(e)}")
        for place, (part, v, e) in enumerate(
            zip(array.names, array.values, array.errors, strict=True)
        )
    ]
    parts = zip(array.names, points, strict=True)
    rows = tuple((part, number(p.y), *array.error(p.error)) for part, p in parts)
    header = (array.axis, array.unit, *array.error_head)
    chart = Bars(points, array.names, array.unit, array.title)
    return Figure(array.name, array.title, chart, header, rows)


def _single(array: _Array) -> Figure:
    """One curve over an axis that does not count units; a path where its points have names."""
    places = array.other("x", np.arange(len(array.values), dtype=float))
    names = [str(name) for name in array.other("points")]
    points = []
    for k, (x, y, e) in enumerate(zip(places, array.values, array.errors, strict=True)):
        value = f"{number(y)}{_plus_minus(e)}"
        label = f"{array.axis} {number(x)} · {value}"
        if names:
            label = f"{names[k]} · {array.x_label} {number(x)} · {array.unit} {value}"
        points.append(Point(float(x), float(y), float(e), label))
    seen = [k for k, p in enumerate(points) if math.isfinite(p.x) and math.isfinite(p.y)]
    ends = (names[seen[0]], names[seen[-1]]) if names and seen else None
    chart = Chart(
        [Line(points, _INK, array.title, "density" in array.unit, ends)],
        array.x_label, array.unit, (), array.unit == "density", None, array.title,
        _span(places, room=0.06 if names else 0.0), _marks(array),
    )  # fmt: skip
    rows = tuple(
        (*names[k : k + 1], number(p.x), number(p.y), *array.error(p.error))
        for k, p in enumerate(points)
    )
    header = (*([array.axis] if names else []), array.x_label, array.unit, *array.error_head)
    return Figure(array.name, array.title, chart, header, rows)


def _by_depth(array: _Array) -> Figure:
    """Values after each unit over normalised depth, kinds behind them (figs 8 and 9)."""
    count = len(array.values)
    units = zip(_units(array.result), _kinds(array.result), array.values, array.errors, strict=True)
    rows = tuple((unit, kind, number(v), number(e)) for unit, kind, v, e in units)
    points = [
        Point(place / max(1, count - 1), float(y), float(e), f"{unit} · {kind} · {v} ± {error}")
        for place, (y, e, (unit, kind, v, error)) in enumerate(
            zip(array.values, array.errors, rows, strict=True)
        )
    ]
    chart = Chart(
        [Line(points, _INK, array.title)], "normalised depth", array.unit,
        tuple(_bands(array.result)), bool(array.about["changes"]), None, array.title,
    )  # fmt: skip
    header = ("unit", "kind", array.unit, "standard error")
    return Figure(array.name, array.title, chart, header, rows)


def _curves(array: _Array) -> Figure:
    """One curve per row: units from dark to light (fig. 2a), few others in colours of their own."""
    values = array.values
    places = np.broadcast_to(array.other("x", np.arange(values.shape[1])), values.shape)
    few = array.axis != "unit" and len(values) <= len(_APART)
    lines, rows = [], []
    for place, names in enumerate(array.about_rows):
        colour = _APART[place] if few else shade(place / max(1, len(values) - 1))
        points = [
            Point(float(x), float(y), float(e),
                  f"{' · '.join(names)} · {number(y)} at {array.x_label} {number(x)}")
            for x, y, e in zip(places[place], values[place], array.errors[place], strict=True)
        ]  # fmt: skip
        lines.append(Line(points, colour, names[0]))
        rows += [
            (*names, number(p.x), number(p.y), *array.error(p.error))
            for p in points
            if math.isfinite(p.y)
        ]
    first = ("unit", "kind") if array.axis == "unit" else (array.axis,)
    chart = Chart(lines, array.x_label, array.unit, (), False, None, array.title, _span(places),
                  _marks(array), few)  # fmt: skip
    header = (*first, array.x_label, array.unit, *array.error_head)
    return Figure(array.name, array.title, chart, header, tuple(rows))


def _span(places: np.ndarray, room: float = 0.0) -> tuple[float, float]:
    """From the first place to the last, with that share of it as room on either side."""
    finite = np.asarray(places, dtype=float)[np.isfinite(places)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    more = room * (high - low) if high > low else 0.5 * abs(low) or 0.5
    return low - more, high + more


def _marks(array: _Array) -> list[Mark]:
    """The places along the last axis that should be seen."""
    return [Mark(float(place), str(words)) for place, words in array.other("marks")]


def _bands(result: Result) -> Iterator[Band]:
    """The kind of each unit, from half way to its neighbours."""
    kinds, subsamples = _kinds(result), getattr(result, "subsamples", ())
    count = len(kinds)
    width = 1 / max(1, count - 1)
    for place, kind in enumerate(kinds):
        shown = "subsampling" if place and subsamples and subsamples[place] else kind
        start, stop = (place - 0.5) * width, (place + 0.5) * width
        yield Band(max(0.0, start), min(1.0, stop), shown)


def side_by_side(charts: Sequence[Drawing]) -> tuple[list[Drawing], str]:
    """The same charts with the same axes or colours, and words where that would flatten some."""
    lines = [chart for chart in charts if isinstance(chart, Chart)]
    bars = [chart for chart in charts if isinstance(chart, Bars)]
    maps = [chart for chart in charts if isinstance(chart, MapChart)]
    y = common_range([value_range(chart.lines, chart.zero) for chart in lines])
    x = common_range([chart.x_range for chart in lines], 12.0)
    length = common_range([chart.range() for chart in bars])
    scale = common_scale([chart.values for chart in maps])
    alike: list[Drawing] = []
    for chart in charts:
        if isinstance(chart, Chart):
            alike.append(replace(chart, y_range=y, x_range=x or chart.x_range))
        elif isinstance(chart, Bars):
            alike.append(replace(chart, x_range=length))
        else:
            alike.append(replace(chart, scale=scale))
    own = [axis for axis, found in (("x", x), ("y", y)) if lines and found is None]
    own += ["x"] if bars and length is None else []
    own = [f"{' and '.join(own)} axis"] if own else []
    own += ["colours"] if maps and scale is None else []
    note = f"Each chart has its own {' and '.join(own)}: one scale for all would flatten some."
    return alike, note if own else ""


def common_scale(maps: Sequence[np.ndarray], times: float = 4.0) -> Scale | None:
    """One scale of colours for maps side by side; None where some would look all alike in it."""
    if not maps:
        return None
    scale = Scale.of(np.concatenate([values.ravel() for values in maps]))
    for values in maps:
        own = Scale.of(values)
        ends = scale.share(np.array([own.low, own.high]))
        if np.isfinite(values).any() and times * (min(1.0, ends[1]) - ends[0]) < 1:
            return None
    return scale


def common_range(
    ranges: Sequence[tuple[float, float]], times: float = 4.0
) -> tuple[float, float] | None:
    """One range for charts side by side; None where it is so many times as wide as one of them."""
    if not ranges:
        return None
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    narrowest = min(r[1] - r[0] for r in ranges)
    return (low, high) if high - low <= times * narrowest else None


def number(value: float) -> str:
    """A number with four significant digits; a dash for none.

    Example:
        >>> number(-1.23456), number(float("nan"))
        ('−1.235', '–')
    """
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else "–"


def _plus_minus(error: float) -> str:
    return f" ± {number(error)}" if math.isfinite(error) else ""


def _units(result: Result) -> tuple[str, ...]:
    return getattr(result, "units", ())


def _kinds(result: Result) -> tuple[str, ...]:
    return getattr(result, "kinds", None) or ("",) * len(_units(result))
