"""Draws a result from the descriptions of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retinoscope.core.errors import WrongInput
from retinoscope.core.result import Result
from retinoscope.figures.compare import together
from retinoscope.figures.describe import figure
from retinoscope.figures.figure import Colour, Map
from retinoscope.plots.draw import draw, draw_surface

if TYPE_CHECKING:
    from mpl_toolkits.mplot3d.axes3d import Axes3D


def plot(result: Result, ax: Axes | None = None, field: str | None = None) -> Axes:
    """Draw one array: that of ``field``, or the first with a figure."""
    described = figure(result, field)
    ax = draw(described.chart, ax)
    ax.set_title(described.title, fontsize="small", wrap=True)
    return ax


def plot_together(
    results: Mapping[str, Result], field: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the curves of several results in one figure, with the same colours as the report.

    Args:
        results: Results of one probe, by the names of their models.
        field: The array to draw. Default: the first with a figure.
        ax: The axes to draw on. Default: a new figure.
    """
    described = [figure(result, field) for result in results.values()]
    colours = [Colour("categorical", index) for index in range(len(described))]
    chart = together([one.chart for one in described], list(results), colours)
    if chart is None:
        raise WrongInput(
            "Only curves of two or more results can be drawn together; draw other results one by "
            "one with plot(result, field=…)."
        )
    ax = draw(chart, ax)
    ax.set_title(described[0].title, fontsize="small", wrap=True)
    return ax


def plot_surface(result: Result, field: str | None = None, ax3d: Axes3D | None = None) -> Axes3D:
    """Draw a map as a surface: flat where it is clipped, with holes where it is not finite.

    ``ax3d`` comes from ``add_subplot(projection="3d")``.
    """
    chart = figure(result, field).chart
    if not isinstance(chart, Map):
        raise WrongInput(
            f"Only a map can be drawn as a surface; {field or 'the first array'} is not a map."
        )
    ax = ax3d or Figure(figsize=(4.4, 4), layout="constrained").add_subplot(projection="3d")
    draw_surface(chart, ax)
    return ax
