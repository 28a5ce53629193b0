"""Draws charts with matplotlib: the same data, ranges, colours and contour lines as the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from retinoscope.core.wording import axis_number, shortened
from retinoscope.figures.colours import BANDS, BAR, CENTRE, HOLE, OPACITY, colormap
from retinoscope.figures.figure import (
    Bars,
    Chart,
    Images,
    Line,
    Lines,
    Map,
    Matrix,
    Shading,
    scale_of,
)
from retinoscope.figures.scale import Scale

if TYPE_CHECKING:
    from mpl_toolkits.mplot3d.axes3d import Axes3D

_MANY = 60
"""Number of points above which a line has no dots."""


def draw(chart: Chart, ax: Axes | None = None) -> Axes:
    """Draw a chart on ``ax``, or on axes of a new figure."""
    ax = ax or Figure(figsize=_size(chart), layout="constrained").add_subplot()
    match chart:
        case Lines():
            _lines(chart, ax)
        case Bars():
            _bars(chart, ax)
        case Map():
            _map(chart, ax)
        case Matrix():
            _matrix(chart, ax)
        case Images():
            _images(chart, ax)
    return ax


def _size(chart: Chart) -> tuple[float, float]:
    """The size in inches."""
    match chart:
        case Bars():
            return 4, max(2.0, 0.8 + 0.2 * len(chart.names))
        case Matrix():
            return 1.8 + 0.13 * max(20, len(chart.columns)), 1 + 0.13 * max(20, len(chart.rows))
        case Images():
            height = chart.rows * (1.2 * chart.tall + 0.3) + 0.4 * (not chart.plain)
            return 1.2 * chart.columns, height
        case Map():
            return 4.4, 3.6
        case _:
            return 4, 3


def _lines(chart: Lines, ax: Axes) -> None:
    for band in chart.bands:
        ax.axvspan(band.start, band.stop, color=BANDS[band.kind], linewidth=0, zorder=0)
    for mark in chart.marks:
        ax.axvline(mark.x, color="#888888", linewidth=0.8, linestyle="--", zorder=1)
        # x in data coordinates, y as a fraction of the axis height.
        ax.text(mark.x, 0.02, f" {mark.words}", transform=ax.get_xaxis_transform(), color="#666666",
                fontsize="x-small")  # fmt: skip
    for line in chart.lines:
        _line(line, ax, bool(chart.errors), chart.y_limits[0] if chart.log else -np.inf)
    if chart.zero:
        ax.axhline(0, color="#666666", linewidth=0.8, zorder=1)
    if chart.log:
        ax.set_yscale("log")
        ax.set_yticks(chart.y_ticks, labels=[axis_number(v) for v in chart.y_ticks])
        ax.minorticks_off()
    ax.set(xlabel=chart.x_label, ylabel=chart.y_label, xlim=chart.x_range, ylim=chart.y_limits)
    if chart.legend:
        ax.legend(frameon=False)


def _line(line: Line, ax: Axes, errors: bool, lowest: float) -> None:
    x, y, ink = line.column("x"), line.column("y"), line.colour.web
    dots = "o" if len(line.points) <= _MANY and line.shading is None else None
    style: dict[str, Any] = {"color": "#9aa3ae"} if line.shading else {"color": ink}
    label = (
        (line.name or "_") if np.isfinite(y).any() else "_"
    )  # matplotlib omits such labels from legends
    ax.plot(x, y, label=label, marker=dots, markersize=3, linewidth=1.2, zorder=2, **style)
    if errors:
        error = 2 * np.nan_to_num(line.column("error"))
        below = np.maximum(y - error, lowest)
        ax.fill_between(x, below, y + error, alpha=0.18, color=ink, linewidth=0)
    if line.filled:
        ax.fill_between(x, y, alpha=0.22, color=ink, linewidth=0)
    if line.shading:
        _shaded(line.shading, x, y, ax)
    for name, at in zip(line.names, zip(x, y, strict=True), strict=False):
        if np.isfinite(at).all():
            ax.annotate(name, at, (4, 4), textcoords="offset points", fontsize="x-small")


def _shaded(shading: Shading, x: np.ndarray, y: np.ndarray, ax: Axes) -> None:
    """Points in the colours of their values."""
    scale = scale_of(shading)
    points = ax.scatter(x, y, c=shading.values, zorder=3, **_colours(scale))
    if np.isfinite(shading.values).any():
        _colour_bar(points, scale, shading.values, shading.label, ax)


def _bars(chart: Bars, ax: Axes) -> None:
    bars = Line(chart.points)
    errors = 2 * bars.column("error") if chart.errors else None
    places = range(len(chart.names))
    ax.barh(places, bars.column("y"), xerr=errors, color=BAR, error_kw={"linewidth": 0.8})
    ax.set_yticks(places, labels=chart.names)
    ax.invert_yaxis()
    ax.set(xlabel=chart.label, xlim=chart.x_range or chart.range())


def _map(chart: Map, ax: Axes) -> None:
    scale = scale_of(chart)
    mesh = _mesh(chart.edges[0], chart.edges[1], chart.values, scale, ax)
    for iso in chart.iso_lines():
        ax.add_collection(
            LineCollection(iso.lines, colors=iso.ink, linewidths=0.7, alpha=0.75), autolim=False
        )
    if chart.centre:
        ax.scatter(0, 0, marker="+", color=CENTRE, s=60, zorder=3)
    _colour_bar(mesh, scale, chart.values, chart.labels[2], ax)
    ax.set(xlabel=chart.labels[0], ylabel=chart.labels[1])


def _matrix(chart: Matrix, ax: Axes) -> None:
    scale = scale_of(chart)
    edges = [np.arange(count + 1) - 0.5 for count in reversed(chart.values.shape)]
    mesh = _mesh(edges[0], edges[1], chart.values, scale, ax)
    for row in chart.row_borders:
        ax.axhline(row - 0.5, color=chart.border_ink, linewidth=0.8)
    for column in chart.column_borders:
        ax.axvline(column - 0.5, color=chart.border_ink, linewidth=0.8)
    style: dict[str, Any] = {"fontsize": 6}
    ax.set_yticks(range(len(chart.rows)), [shortened(n, 24) for n in chart.rows], **style)
    columns = [shortened(name, 24) for name in chart.columns]
    ax.set_xticks(range(len(columns)), columns, rotation=90, **style)
    ax.invert_yaxis()
    _colour_bar(mesh, scale, chart.values, chart.labels[2], ax)
    ax.set(xlabel=chart.labels[0], ylabel=chart.labels[1])


def _images(chart: Images, ax: Axes) -> None:
    """Images in one grid, each one unit wide, with captions below; of choices the first."""
    tall = chart.tall
    step = tall + 0.25
    for index, caption in enumerate(chart.captions):
        row, column = divmod(index, chart.columns)
        left, top = 1.08 * column, -step * row
        extent = (left, left + 1, top - tall, top)
        if (below := chart.below(index)) is not None:
            ax.imshow(below, extent=extent)
        ax.imshow(chart.pixels(index), extent=extent, alpha=1.0 if below is None else OPACITY)
        ax.text(left + 0.5, top - tall - 0.03, shortened(caption, 18), ha="center", va="top",
                fontsize="x-small")  # fmt: skip
    size = (-0.04, 1.08 * chart.columns - 0.04), (-step * chart.rows, 0.04)
    ax.set(xlim=size[0], ylim=size[1], aspect="equal")
    ax.axis("off")
    if not chart.plain:
        from matplotlib.cm import ScalarMappable

        scale = scale_of(chart)
        shown = ScalarMappable(**_colours(scale))
        above: dict[str, Any] = {"location": "bottom", "shrink": 0.5, "aspect": 30, "pad": 0.02}
        _colour_bar(shown, scale, chart.values, chart.label, ax, **above)


def draw_surface(chart: Map, ax: Axes3D) -> None:
    """Heights are positions on the scale, with its round tick values."""
    scale = scale_of(chart)
    across, up = np.meshgrid(chart.x, chart.y)
    heights = np.clip(scale.share(chart.values), 0, 1)
    ax.plot_surface(
        across, up, heights, cmap=colormap(scale.table), vmin=0, vmax=1, rcount=len(chart.y),
        ccount=len(chart.x),
    )  # fmt: skip
    levels = scale.levels()
    places = [float(scale.share(np.array(v))) for v in levels]
    ax.zaxis.set_ticks(places, labels=[axis_number(v) for v in levels])
    label = chart.labels[2] + ", logarithmic" * scale.log + ", clipped" * scale.clipped
    ax.set(xlabel=chart.labels[0], ylabel=chart.labels[1], zlabel=label, zlim=(0, 1))


def _mesh(x: np.ndarray, y: np.ndarray, values: np.ndarray, scale: Scale, ax: Axes) -> Any:
    """One cell per value; grey if it is not finite."""
    ax.set_facecolor(HOLE)
    return ax.pcolormesh(x, y, np.ma.masked_invalid(values), **_colours(scale))


def _colours(scale: Scale) -> dict[str, Any]:
    norm = (LogNorm if scale.log else Normalize)(scale.low, scale.high)
    return {"norm": norm, "cmap": colormap(scale.table)}


def _colour_bar(
    shown: Any, scale: Scale, values: np.ndarray, label: str, ax: Axes, **where: Any
) -> None:
    shares = scale.share(np.asarray(values, dtype=float))
    low, high = (np.nanmin(shares, initial=0) < 0, np.nanmax(shares, initial=0) > 1)
    beyond = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[int(low), int(high)]
    extend = beyond if scale.clipped else "neither"
    bar = ax.figure.colorbar(shown, ax=ax, label=label, extend=extend, **where)
    levels = scale.levels()
    if where:  # horizontal numbers need more room
        levels = levels[:: max(1, len(levels) // 5)]
    bar.set_ticks(levels, labels=[axis_number(v) for v in levels])
    bar.minorticks_off()
