"""Feature-map variance over depth as in figure 9 of Park & Kim (2022, arXiv:2202.06709)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from retinoscope.plots.by_depth import plot_by_depth

if TYPE_CHECKING:
    from retinoscope.probes.variance import VarianceResult


def plot(result: VarianceResult, ax: Axes | None = None) -> Axes:
    """The variance after each unit."""
    return plot_by_depth(result, "variance", ax)


def plot_step(result: VarianceResult, ax: Axes | None = None) -> Axes:
    """What each unit does to the variance; below 0 it averages."""
    return plot_by_depth(result, "step", ax)
