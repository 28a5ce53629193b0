"""Charts of a result, drawn from what its fields say about their axes: none is made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retinoscope.core.result import Result
from retinoscope.report.chart import Band, Chart, Line, Point, value_range

_VIRIDIS = (
    (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128),
    (94, 201, 98), (173, 220, 48), (253, 231, 37),
)  # fmt: skip
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
        if described[name].metadata["figure"] and _drawable(result, described[name].metadata)
    ]


def _drawable(result: Result, about: Mapping[str, Any]) -> bool:
    """A value per unit, a curve per unit, or one curve; maps are for probes to come."""
    first = about["axes"][0] == "unit" and hasattr(result, "units")
    return len(about["axes"]) == 1 or (first and len(about["axes"]) == 2)


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
    places = getattr(result, about["x"]) if about["x"] else np.broadcast_to(
        np.arange(values.shape[1]), values.shape
    )  # fmt: skip
    x_unit = result.described()[about["x"]].metadata["unit"] if about["x"] else ""
    x_label = f"{about['axes'][-1]} ({x_unit})" if x_unit else about["axes"][-1]
    chart = _curves(result, values, errors, places, (x_label, about["unit"], title))
    header = ("unit", "kind", x_label, about["unit"], "standard error")
    rows = tuple(
        (unit, kind, number(x), number(v), number(e))
        for unit, kind, xs, vs, es in zip(
            _units(result), _kinds(result), places, values, errors, strict=True
        )
        for x, v, e in zip(xs, vs, es, strict=True)
        if math.isfinite(v)
    )
    return Figure(name, title, chart, header, rows)


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
        Point(float(x), float(y), float(e), f"{axis} {number(x)} · {number(y)} ± {number(e)}")
        for x, y, e in zip(places, values, errors, strict=True)
    ]
    ends = (float(min(places, default=0)), float(max(places, default=0)))
    ends = ends if ends[1] > ends[0] else (ends[0] - 0.5, ends[0] + 0.5)
    chart = Chart(
        [Line(points, "#1f4e79", title)], axis, about["unit"], (), False, None, title, ends
    )
    rows = tuple(
        (number(x), number(v), number(e)) for x, v, e in zip(places, values, errors, strict=True)
    )
    return Figure(name, title, chart, (axis, about["unit"], "standard error"), rows)


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
    labels: tuple[str, str, str],
) -> Chart:
    """One curve per unit, early ones dark, late ones light (fig. 2a)."""
    x_label, unit, title = labels
    lines = []
    for place, (name, kind) in enumerate(zip(_units(result), _kinds(result), strict=True)):
        points = [
            Point(
                float(x),
                float(y),
                float(e),
                f"{name} · {kind} · {number(y)} at {x_label} {number(x)}",
            )
            for x, y, e in zip(places[place], values[place], errors[place], strict=True)
        ]
        lines.append(Line(points, shade(place / max(1, len(values) - 1)), name))
    finite = places[np.isfinite(places)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    ends = ends if ends[1] > ends[0] else (ends[0], ends[0] + 1.0)
    return Chart(lines, x_label, unit, (), False, None, title, ends)


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


def _units(result: Result) -> tuple[str, ...]:
    return getattr(result, "units", ())


def _kinds(result: Result) -> tuple[str, ...]:
    return getattr(result, "kinds", None) or ("",) * len(_units(result))
