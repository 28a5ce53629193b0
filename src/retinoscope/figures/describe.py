"""Makes the figures of a result from the descriptions of its fields; no probe has special code."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from retinoscope.core.errors import WrongInput, did_you_mean
from retinoscope.core.result import Result
from retinoscope.core.wording import number, plus_minus
from retinoscope.figures.cells import images, map_of, matrix
from retinoscope.figures.colours import BANDS
from retinoscope.figures.declared import Declared
from retinoscope.figures.figure import (
    Band,
    Bars,
    Colour,
    Figure,
    Line,
    Lines,
    Mark,
    Point,
    Shading,
)

_FEW = 4
"""Maximum number of lines for which each has its own colour and its name in the figure."""
_PLAIN = ("stem",)
"""Kinds without a background: there is only one stem, and it always comes first."""


def figures(result: Result) -> list[Figure]:
    """One figure for each array that has a figure and is not empty, in the order of the fields."""
    return [_figure(array) for array in _worthwhile(result) if not array.empty]


def figure(result: Result, field: str | None = None) -> Figure:
    """The figure of one field, even if it has none by default. Default: the first figure."""
    if field is None:
        for array in _worthwhile(result):
            return _figure(array)
        raise WrongInput(f"A result of {result.probe} has no array to draw.")
    arrays = {array.name: array for array in _arrays(result) if array.fits}
    if field not in arrays:
        raise WrongInput(
            f"A result of {result.probe} has no figure of {field!r}. "
            f"{did_you_mean(field, list(arrays))}There are: {', '.join(arrays)}."
        )
    return _figure(arrays[field])


def _arrays(result: Result) -> list[Declared]:
    return [Declared(result, name, f.metadata) for name, f in result.described().items()]


def _worthwhile(result: Result) -> list[Declared]:
    return [array for array in _arrays(result) if array.about["figure"] and array.fits]


def _figure(array: Declared) -> Figure:
    if array.draw:
        return {"matrix": matrix, "images": images}[array.draw](array)
    if array.about.get("y"):
        return map_of(array)
    if array.values.ndim == 2:
        return _curves(array)
    if array.axis == "unit":
        return _by_depth(array)
    return _bars(array) if array.about.get("rows") else _single(array)


def _bars(array: Declared) -> Figure:
    """One value for each of a few named parts, in the given order."""
    points = [
        Point(float(index), float(v), float(e), f"{part} · {number(v)}{plus_minus(e)}")
        for index, (part, v, e) in enumerate(
            zip(array.names, array.values, array.errors, strict=True)
        )
    ]
    parts = zip(array.names, points, strict=True)
    rows = tuple((part, number(p.y), *array.error(p.error)) for part, p in parts)
    header = (array.axis, array.unit, *array.error_head)
    chart = Bars(points, array.names, array.unit, array.title)
    return Figure(array.name, array.title, chart, header, rows)


def _single(array: Declared) -> Figure:
    """One curve over an axis that does not count units; a path if its points have names."""
    places = array.other("x", np.arange(len(array.values), dtype=float))
    names = [str(name) for name in array.other("points")]
    shading, shades = None, [""] * len(array.values)
    if array.about.get("shade"):
        values, label = np.asarray(array.other("shade")), array.unit_of("shade")
        shading = Shading(values, label, **array.colours)
        shades = [f" · {label} {number(v)}" for v in values]
    points = []
    for k, (x, y, e) in enumerate(zip(places, array.drawn, array.errors, strict=True)):
        value = f"{number(y)}{plus_minus(e)}"
        label = f"{array.axis} {number(x)} · {value}{shades[k]}"
        if names:
            label = f"{names[k]} · {array.x_label} {number(x)} · {array.unit} {value}{shades[k]}"
        points.append(Point(float(x), float(y), float(e), label))
    seen = [k for k, p in enumerate(points) if math.isfinite(p.x) and math.isfinite(p.y)]
    ends = (names[seen[0]], names[seen[-1]]) if names and seen else None
    line = Line(points, Colour(), array.title, "density" in array.unit, ends, names, shading)
    chart = Lines(
        [line], array.x_label, array.unit, (), array.unit == "density", None, array.title,
        _span(places, room=0.06 if names else 0.0), _marks(array), log=array.log,
    )  # fmt: skip
    rows = tuple(
        (*names[k : k + 1], number(p.x), number(array.values[k]), *array.error(p.error))
        for k, p in enumerate(points)
    )
    header = (*([array.axis] if names else []), array.x_label, array.unit, *array.error_head)
    return Figure(array.name, array.title, chart, header, rows)


def _by_depth(array: Declared) -> Figure:
    """Values after each unit over normalised depth, with kinds as backgrounds (figs 8 and 9)."""
    count = len(array.values)
    units = zip(array.names, array.kinds, array.values, array.errors, strict=True)
    rows = tuple((unit, kind, number(v), number(e)) for unit, kind, v, e in units)
    points = [
        Point(index / max(1, count - 1), float(y), float(e), f"{unit} · {kind} · {v} ± {error}")
        for index, (y, e, (unit, kind, v, error)) in enumerate(
            zip(array.drawn, array.errors, rows, strict=True)
        )
    ]
    chart = Lines(
        [Line(points, Colour(), array.title)], "normalised depth", array.unit,
        tuple(_bands(array)), bool(array.about["changes"]), None, array.title, log=array.log,
    )  # fmt: skip
    header = ("unit", "kind", array.unit, "standard error")
    return Figure(array.name, array.title, chart, header, rows)


def _curves(array: Declared) -> Figure:
    """One curve per row: units from dark to light (fig. 2a), few other rows in distinct colours."""
    values, drawn = array.values, array.drawn
    places = np.broadcast_to(array.other("x", np.arange(values.shape[1])), values.shape)
    few = array.axis != "unit" and len(values) <= _FEW
    lines, rows = [], []
    for index, names in enumerate(array.about_rows):
        share = index / max(1, len(values) - 1)
        colour = Colour("categorical", index) if few else Colour("sequential", share)
        points = [
            Point(float(x), float(y), float(e),
                  f"{' · '.join(names)} · {number(y)} at {array.x_label} {number(x)}")
            for x, y, e in zip(places[index], drawn[index], array.errors[index], strict=True)
        ]  # fmt: skip
        lines.append(Line(points, colour, names[0]))
        rows += [
            (*names, number(p.x), number(y), *array.error(p.error))
            for p, y in zip(points, values[index], strict=True)
            if math.isfinite(y)
        ]
    first = ("unit", "kind") if array.axis == "unit" else (array.axis,)
    chart = Lines(lines, array.x_label, array.unit, (), False, None, array.title, _span(places),
                  _marks(array), few, array.log)  # fmt: skip
    header = (*first, array.x_label, array.unit, *array.error_head)
    return Figure(array.name, array.title, chart, header, tuple(rows))


def _span(places: np.ndarray, room: float = 0.0) -> tuple[float, float]:
    """The range of the coordinates, extended by the given fraction on both sides."""
    finite = np.asarray(places, dtype=float)[np.isfinite(places)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    more = room * (high - low) if high > low else 0.5 * abs(low) or 0.5
    return low - more, high + more


def _marks(array: Declared) -> list[Mark]:
    """Coordinates along the last axis to mark."""
    return [Mark(float(place), str(words)) for place, words in array.other("marks")]


def _bands(array: Declared) -> Iterator[Band]:
    """The kinds of units that have a colour, each extending half way to its neighbours."""
    subsamples = array.result.subsamples
    width = 1 / max(1, len(array.kinds) - 1)
    for index, kind in enumerate(array.kinds):
        shown = "subsampling" if index and subsamples and subsamples[index] else kind
        if shown in BANDS and shown not in _PLAIN:
            start, stop = (index - 0.5) * width, (index + 0.5) * width
            yield Band(max(0.0, start), min(1.0, stop), shown)
