"""Charts of a result, drawn from what its fields say about their axes: none is made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retinoscope.core.result import Result
from retinoscope.report.chart import Band, Chart, Line, Mark, Point, value_range

_VIRIDIS = (
    (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128),
    (94, 201, 98), (173, 220, 48), (253, 231, 37),
)  # fmt: skip
_APART = ("#c2571a", "#1f4e79", "#2f7d4f", "#7a4a94")
"""For few lines that are no series, so that each is easily told from the others."""
_LIGHTEST = 0.88
"""The lightest yellow cannot be seen on white."""


@dataclass(frozen=True)
class Figure:
    """One array of one result as a chart, with its numbers."""

    field: str
    title: str
    chart: Chart
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figures(result: Result) -> list[Figure]:
    """A figure for each array that is worth one, in the order of the fields."""
    described = result.described()
    return [
        _figure(result, name, described[name].metadata)
        for name in described
        if described[name].metadata["figure"] and _drawable(result, name, described[name].metadata)
    ]


def _drawable(result: Result, name: str, about: Mapping[str, Any]) -> bool:
    """A value per unit, a curve per unit or other row that has a name, or one curve.

    Maps are for probes to come. Where all is missing, there is nothing to draw.
    """
    named = len(about["axes"]) == 2 and bool(_names(result, about))
    return (len(about["axes"]) == 1 or named) and not np.isnan(getattr(result, name)).all()


def _figure(result: Result, name: str, about: Mapping[str, Any]) -> Figure:
    values = getattr(result, name)
    errors = getattr(result, about["error"]) if about["error"] else np.full_like(values, np.nan)
    title = about["title"] or name.replace("_", " ")
    if values.ndim == 1 and about["axes"][0] != "unit":
        return _single(result, name, values, errors, about, title)
    if values.ndim == 1:
        chart = _by_depth(result, values, errors, about, title)
        header = ("unit", "kind", about["unit"], "standard error")
        rows = tuple(
            (unit, kind, number(v), number(e))
            for unit, kind, v, e in zip(_units(result), _kinds(result), values, errors, strict=True)
        )
        return Figure(name, title, chart, header, rows)
    places = getattr(result, about["x"]) if about["x"] else np.arange(values.shape[1])
    places = np.broadcast_to(places, values.shape)
    x_unit = result.described()[about["x"]].metadata["unit"] if about["x"] else ""
    x_label = f"{about['axes'][-1]} ({x_unit})" if x_unit else about["axes"][-1]
    chart = _curves(result, values, errors, places, about, (x_label, title))
    cells = zip(_about_rows(result, about), places, values, errors, strict=True)
    rows = tuple(
        (*names, number(x), number(v), *([number(e)] if about["error"] else []))
        for names, xs, vs, es in cells
        for x, v, e in zip(xs, vs, es, strict=True)
        if math.isfinite(v)
    )
    first = ("unit", "kind") if about["axes"][0] == "unit" else (about["axes"][0],)
    return Figure(name, title, chart, (*first, x_label, about["unit"], *_error(about)), rows)


def _single(
    result: Result,
    name: str,
    values: np.ndarray,
    errors: np.ndarray,
    about: Mapping[str, Any],
    title: str,
) -> Figure:
    """One curve over an axis that does not count units."""
    places = getattr(result, about["x"]) if about["x"] else np.arange(len(values), dtype=float)
    axis = about["axes"][0]
    points = [
        Point(float(x), float(y), float(e), f"{axis} {number(x)} · {number(y)}{_plus_minus(e)}")
        for x, y, e in zip(places, values, errors, strict=True)
    ]
    ends = (float(min(places, default=0)), float(max(places, default=0)))
    ends = ends if ends[1] > ends[0] else (ends[0] - 0.5, ends[0] + 0.5)
    chart = Chart(
        [Line(points, "#1f4e79", title)], axis, about["unit"], (), False, None, title, ends,
        _marks(result, about),
    )  # fmt: skip
    rows = tuple(
        (number(x), number(v), *([number(e)] if about["error"] else []))
        for x, v, e in zip(places, values, errors, strict=True)
    )
    return Figure(name, title, chart, (axis, about["unit"], *_error(about)), rows)


def _by_depth(
    result: Result, values: np.ndarray, errors: np.ndarray, about: Mapping[str, Any], title: str
) -> Chart:
    """Values after each unit over normalised depth, kinds behind them (figs 8 and 9)."""
    count = len(values)
    depth = [place / max(1, count - 1) for place in range(count)]
    points = [
        Point(x, float(y), float(e), f"{name} · {kind} · {number(y)} ± {number(e)}")
        for x, y, e, name, kind in zip(
            depth, values, errors, _units(result), _kinds(result), strict=True
        )
    ]
    lines = [Line(points, "#1f4e79", title)]
    around_zero = bool(about["changes"])
    bands = tuple(_bands(result))
    return Chart(lines, "normalised depth", about["unit"], bands, around_zero, None, title)


def _curves(
    result: Result,
    values: np.ndarray,
    errors: np.ndarray,
    places: np.ndarray,
    about: Mapping[str, Any],
    labels: tuple[str, str],
) -> Chart:
    """One curve per row: units from dark to light (fig. 2a), few others in colours of their own."""
    x_label, title = labels
    few = about["axes"][0] != "unit" and len(values) <= len(_APART)
    lines = []
    for place, names in enumerate(_about_rows(result, about)):
        points = [
            Point(
                float(x),
                float(y),
                float(e),
                f"{' · '.join(names)} · {number(y)} at {x_label} {number(x)}",
            )
            for x, y, e in zip(places[place], values[place], errors[place], strict=True)
        ]
        colour = _APART[place] if few else shade(place / max(1, len(values) - 1))
        lines.append(Line(points, colour, names[0]))
    finite = places[np.isfinite(places)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    ends = ends if ends[1] > ends[0] else (ends[0], ends[0] + 1.0)
    marks = _marks(result, about)
    return Chart(lines, x_label, about["unit"], (), False, None, title, ends, marks, few)


def _marks(result: Result, about: Mapping[str, Any]) -> list[Mark]:
    """The places along the last axis that should be seen; older files know of none."""
    marks = getattr(result, about["marks"]) if about.get("marks") else ()
    return [Mark(float(place), str(words)) for place, words in marks]


def _bands(result: Result) -> Iterator[Band]:
    """The kind of each unit, from half way to its neighbours."""
    kinds, subsamples = _kinds(result), getattr(result, "subsamples", ())
    count = len(kinds)
    width = 1 / max(1, count - 1)
    for place, kind in enumerate(kinds):
        shown = "subsampling" if place and subsamples and subsamples[place] else kind
        start, stop = (place - 0.5) * width, (place + 0.5) * width
        yield Band(max(0.0, start), min(1.0, stop), shown)


def common_range(charts: Sequence[Chart]) -> tuple[float, float] | None:
    """One y range for charts side by side; None where it would flatten one of them."""
    ranges = [value_range(chart.lines, chart.zero) for chart in charts]
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    narrowest = min(r[1] - r[0] for r in ranges)
    return (low, high) if high - low <= 4 * narrowest else None


def shade(share: float) -> str:
    """A colour of the viridis map, dark for 0.

    Example:
        >>> shade(0.0)
        '#440154'
    """
    place = _LIGHTEST * share * (len(_VIRIDIS) - 1)
    low = min(int(place), len(_VIRIDIS) - 2)
    mixed = (
        round(a + (b - a) * (place - low))
        for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def number(value: float) -> str:
    """A number with four significant digits; a dash for none.

    Example:
        >>> number(-1.23456), number(float("nan"))
        ('−1.235', '–')
    """
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else "–"


def _plus_minus(error: float) -> str:
    return f" ± {number(error)}" if math.isfinite(error) else ""


def _error(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The head of a column that only those have who say how sure they are."""
    return ("standard error",) if about["error"] else ()


def _names(result: Result, about: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the rows; older files know of those of units only."""
    if about["axes"][0] == "unit":
        return _units(result)
    return getattr(result, about["rows"]) if about.get("rows") else ()


def _about_rows(result: Result, about: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What is known of each row: the name, and of a unit its kind."""
    names = _names(result, about)
    if about["axes"][0] == "unit":
        return list(zip(names, _kinds(result), strict=True))
    return [(name,) for name in names]


def _units(result: Result) -> tuple[str, ...]:
    return getattr(result, "units", ())


def _kinds(result: Result) -> tuple[str, ...]:
    return getattr(result, "kinds", None) or ("",) * len(_units(result))
