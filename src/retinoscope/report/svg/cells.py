"""Maps and matrices as SVG: one box per value, with a hint on hovering."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from retinoscope.core.wording import axis_number, shortened
from retinoscope.figures.colours import CENTRE, HOLE, shade
from retinoscope.figures.figure import Map, Matrix, scale_of
from retinoscope.figures.scale import Scale, ticks
from retinoscope.report.svg.markup import tag
from retinoscope.report.svg.pen import drawing, legend_beside, rule, text, upright, x_axis

_LEFT, _TOP, _BOTTOM, _SIDE = 56.0, 24.0, 42.0, 304.0
_LEGEND = 374.0
"""The x coordinate of the colour scale."""
_WIDEST, _LETTER = 120.0, 5.6
"""The space for the names of a matrix, and the width of one letter."""
_APART = 11.0
"""The minimum distance between two names of a matrix."""


def map_svg(chart: Map) -> Markup:
    """A map: colours, contour lines, a cross at the origin, and axes with round numbers."""
    scale = scale_of(chart)
    shares = scale.share(chart.values)
    columns, rows = chart.edges
    parts = [
        *_cells(scale, shares, chart.hints, _across(columns, columns), _down(rows, rows)),
        *_iso_lines(chart, columns, rows),
        *_centre(chart, columns, rows),
        *_axes(chart, columns, rows),
        *legend_beside(scale, chart.labels[2], shares, _LEGEND, (_TOP, _TOP + _SIDE)),
    ]
    return drawing(parts, chart.name, _TOP + _SIDE + _BOTTOM, "chart heat")


def matrix_svg(chart: Matrix) -> Markup:
    """A matrix: colours, names of rows and columns, and borders between groups."""
    scale = scale_of(chart)
    shares = scale.share(chart.values)
    left, below = (
        min(_WIDEST, 8 + _LETTER * max(map(len, names))) for names in (chart.rows, chart.columns)
    )
    left += 18
    right, base = _LEGEND - 12, _TOP + _SIDE
    across = np.linspace(left, right, len(chart.columns) + 1).tolist()
    down = np.linspace(_TOP, base, len(chart.rows) + 1).tolist()
    parts = _cells(scale, shares[::-1], chart.hints[::-1], across, down[::-1])
    between = [(left, down[i], right, down[i]) for i in chart.row_borders]
    between += [(across[j], _TOP, across[j], base) for j in chart.column_borders]
    parts += [
        rule(*ends, chart.border_ink, class_="border", pointer_events="none") for ends in between
    ]
    most = int(_WIDEST / _LETTER)
    for i in _named(len(chart.rows), down):
        middle = (down[i] + down[i + 1]) / 2 + 4
        parts.append(text(shortened(chart.rows[i], most), left - 5, middle, "end"))
    for j in _named(len(chart.columns), across):
        middle = (across[j] + across[j + 1]) / 2 + 4
        parts.append(upright(shortened(chart.columns[j], most), middle, base + 5, "end", "#444"))
    height = base + below + 24
    parts.append(text(chart.labels[0], (left + right) / 2, height - 6, colour="#222"))
    parts.append(upright(chart.labels[1], 12, _TOP + _SIDE / 2))
    parts += legend_beside(scale, chart.labels[2], shares, _LEGEND, (_TOP, base))
    return drawing(parts, chart.name, height, "chart heat matrix")


def _named(count: int, edges: Sequence[float]) -> range:
    """The rows or columns with enough room for their names."""
    return range(0, count, max(1, math.ceil(_APART / abs(edges[1] - edges[0]))))


def _cells(
    scale: Scale,
    shares: np.ndarray,
    hints: Sequence[Sequence[str]],
    lefts: Sequence[float],
    bottoms: Sequence[float],
) -> list[Markup]:
    """One box per value between edges from left to right and up; hatched if it is not finite."""
    boxes, hatched = [], []
    for i, row in enumerate(shares.tolist()):
        for j, share in enumerate(row):
            left, right, top, bottom = lefts[j], lefts[j + 1], bottoms[i + 1], bottoms[i]
            if math.isnan(share):
                hatched.append(f"M{left:.1f} {bottom:.1f}L{right:.1f} {top:.1f}")
            boxes.append(
                tag("rect", x=left, y=top, width=right - left, height=bottom - top,
                    fill=HOLE if math.isnan(share) else shade(share, scale.table), class_="point",
                    data_label=hints[i][j])
            )  # fmt: skip
    lines = [tag("path", d="".join(hatched), stroke="#8d949e", pointer_events="none")]
    return [tag("g", *boxes, shape_rendering="crispEdges"), *(lines if hatched else [])]


def _iso_lines(chart: Map, columns: np.ndarray, rows: np.ndarray) -> list[Markup]:
    """Contour lines at the tick values of the colour scale."""
    drawn = []
    for iso in chart.iso_lines():
        steps = []
        for line in iso.lines:
            places = zip(_across(line[:, 0], columns), _down(line[:, 1], rows), strict=True)
            steps.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places))
        drawn.append(
            tag("path", d="".join(steps), class_="iso", data_level=axis_number(iso.level),
                fill="none", stroke=iso.ink, stroke_opacity="0.75", stroke_width="1",
                stroke_linecap="round", pointer_events="none")
        )  # fmt: skip
    return drawn


def _centre(chart: Map, columns: np.ndarray, rows: np.ndarray) -> list[Markup]:
    if not chart.centre:
        return []
    x, y = _across(np.zeros(1), columns)[0], _down(np.zeros(1), rows)[0]
    cross = f"M{x - 5:.1f} {y:.1f}H{x + 5:.1f}M{x:.1f} {y - 5:.1f}V{y + 5:.1f}"
    return [
        tag("path", d=cross, stroke=ink, stroke_width=width, stroke_linecap="round",
            class_="centre", pointer_events="none")
        for ink, width in (("#fff", "4"), (CENTRE, "1.8"))
    ]  # fmt: skip


def _axes(chart: Map, columns: np.ndarray, rows: np.ndarray) -> list[Markup]:
    """Round numbers along both axes."""
    base = _TOP + _SIDE
    bottom = [(v, _across(np.array([v]), columns)[0]) for v in ticks(columns[0], columns[-1])]
    parts = x_axis(bottom, chart.labels[0], (_LEFT, _LEFT + _SIDE), base)
    parts.append(rule(_LEFT, _TOP, _LEFT, base, "#666"))
    for value in ticks(rows[0], rows[-1]):
        y = _down(np.array([value]), rows)[0]
        parts.append(rule(_LEFT - 4, y, _LEFT, y, "#666"))
        parts.append(text(axis_number(value), _LEFT - 7, y + 4, "end"))
    return [*parts, upright(chart.labels[1], 12, _TOP + _SIDE / 2)]


def _across(values: np.ndarray, edges: np.ndarray) -> list[float]:
    return (_LEFT + _SIDE * (values - edges[0]) / (edges[-1] - edges[0])).tolist()


def _down(values: np.ndarray, edges: np.ndarray) -> list[float]:
    return (_TOP + _SIDE * (edges[-1] - values) / (edges[-1] - edges[0])).tolist()
