"""Combines charts, side by side or overlaid, with common axes and colours where that helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from retinoscope.figures.figure import (
    Bars,
    Chart,
    Colour,
    Images,
    Line,
    Lines,
    Map,
    Matrix,
    Shading,
)
from retinoscope.figures.scale import Scale, common_scale

_COLOURED = (Map, Matrix, Images)


def side_by_side(charts: Sequence[Chart]) -> tuple[list[Chart], str]:
    """The charts with common axes or colours, and a note if that would flatten some."""
    lines = [chart for chart in charts if isinstance(chart, Lines)]
    bars = [chart for chart in charts if isinstance(chart, Bars)]
    coloured: list[Map | Matrix | Images | Shading] = [
        chart for chart in charts if isinstance(chart, _COLOURED) and not _plain(chart)
    ]
    coloured += [line.shading for chart in lines for line in chart.lines if line.shading]
    y = _common_y(lines)
    x = common_range([chart.x_range for chart in lines], 12.0)
    length = common_range([chart.range() for chart in bars])
    scale = None
    if coloured:
        first = coloured[0]
        scale = common_scale([c.values for c in coloured], first.diverging, first.limits)
    alike: list[Chart] = []
    for chart in charts:
        if isinstance(chart, Lines):
            shaded = [_shaded(line, scale) for line in chart.lines]
            alike.append(replace(chart, lines=shaded, y_range=y, x_range=x or chart.x_range))
        elif isinstance(chart, Bars):
            alike.append(replace(chart, x_range=length))
        else:
            alike.append(replace(chart, scale=None if _plain(chart) else scale))
    own = [axis for axis, found in (("x", x), ("y", y)) if lines and found is None]
    own += ["x"] if bars and length is None else []
    own = [f"{' and '.join(own)} axis"] if own else []
    own += ["colours"] if coloured and scale is None else []
    note = f"Each chart has its own {' and '.join(own)}: a common scale would flatten some."
    return alike, note if own else ""


def overlaid(charts: Sequence[Lines], names: Sequence[str]) -> Lines:
    """The lines of several single-line charts in one, each with its own colour and name."""
    lines = [
        replace(chart.lines[0], colour=Colour("categorical", index), name=name)
        for index, (chart, name) in enumerate(zip(charts, names, strict=True))
    ]
    spans = [chart.x_range for chart in charts]
    x_range = min(span[0] for span in spans), max(span[1] for span in spans)
    return replace(charts[0], lines=lines, x_range=x_range, y_range=None, legend=True)


def together(
    charts: Sequence[Chart], names: Sequence[str], colours: Sequence[Colour]
) -> Lines | None:
    """The curves of several models in one chart, one colour each; None if there are no curves.

    A path that is coloured by values is drawn in a plane of its own network, so paths are not
    combined. Kinds of units differ between networks and are omitted.
    """
    lines = [chart for chart in charts if isinstance(chart, Lines)]
    shaded = any(line.shading for chart in lines for line in chart.lines)
    if shaded or len(lines) < 2 or len(lines) < len(charts):
        return None
    drawn = [
        _of_model(line, name, colour, first=not index)
        for chart, name, colour in zip(lines, names, colours, strict=True)
        for index, line in enumerate(chart.lines)
    ]
    spans = [chart.x_range for chart in lines]
    x_range = min(span[0] for span in spans), max(span[1] for span in spans)
    return replace(lines[0], lines=drawn, bands=(), marks=(), x_range=x_range, y_range=None,
                   zero=any(chart.zero for chart in lines), legend=True)  # fmt: skip


def _of_model(line: Line, name: str, colour: Colour, first: bool) -> Line:
    """A line in its model's colour, with hints that name the model; the first line has its name."""
    points = [replace(point, label=f"{name} · {point.label}") for point in line.points]
    named = name if first else ""
    return replace(line, points=points, colour=colour, name=named, ends=None, names=())


def inked(chart: Chart, colour: Colour) -> Chart:
    """A single-line chart in the colour of its model; other charts unchanged.

    Example:
        >>> inked(Lines([Line(())], "x", "y"), Colour("categorical", 1)).lines[0].colour.at
        1
    """
    if not isinstance(chart, Lines) or len(chart.lines) != 1 or chart.lines[0].shading:
        return chart
    return replace(chart, lines=[replace(chart.lines[0], colour=colour)])


def common_range(
    ranges: Sequence[tuple[float, float]], times: float = 4.0
) -> tuple[float, float] | None:
    """A common range for charts side by side; None if it is too wide for one of them."""
    if not ranges:
        return None
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    narrowest = min(r[1] - r[0] for r in ranges)
    return (low, high) if high - low <= times * narrowest else None


def _common_y(charts: Sequence[Lines]) -> tuple[float, float] | None:
    """A common y range; logarithmic axes are compared by their logarithms."""
    ranges = [chart.own_range for chart in charts]
    if not charts or not charts[0].log:
        return common_range(ranges)
    found = common_range([(math.log10(low), math.log10(high)) for low, high in ranges])
    return found and (10 ** found[0], 10 ** found[1])


def _shaded(line: Line, scale: Scale | None) -> Line:
    return replace(line, shading=replace(line.shading, scale=scale)) if line.shading else line


def _plain(chart: Chart) -> bool:
    return isinstance(chart, Images) and chart.plain
