"""The loss around the weights as in Li et al. (2018, arXiv:1712.09913)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retinoscope.plots.declared import ends, plot_map

if TYPE_CHECKING:
    from mpl_toolkits.mplot3d.axes3d import Axes3D

    from retinoscope.probes.landscape import LandscapeResult


def plot(result: LandscapeResult, ax: Axes | None = None) -> Axes:
    """The negative log-likelihood as a map with the weights at the cross, or as a line."""
    if len(result.y) < 2:
        return plot_profiles(result, ax)
    ax = plot_map(result, "nll", ax)
    ax.plot(0, 0, marker="+", color="#b3261e", markersize=8)
    return ax


def plot_profiles(result: LandscapeResult, ax: Axes | None = None) -> Axes:
    """The negative log-likelihood along each direction."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    for direction, line in zip(result.directions, result.profiles, strict=True):
        ax.plot(result.distance, line, label=direction)
    ax.set(xlabel="distance (in units of the direction)", ylabel="NLL (nats)")
    ax.legend(frameon=False)
    return ax


def plot_surface(result: LandscapeResult, ax3d: Axes3D | None = None) -> Axes3D:
    """The same map as a surface, level where it explodes and with holes where it is not finite.

    ``ax3d`` comes from ``add_subplot(projection="3d")``.
    """
    ax = ax3d or Figure(figsize=(4.4, 4), layout="constrained").add_subplot(projection="3d")
    across, up = np.meshgrid(result.x, result.y)
    low, high = ends(result.nll)
    heights = np.where(np.isfinite(result.nll), np.minimum(result.nll, high), np.nan)
    ax.plot_surface(
        across, up, heights, cmap="viridis", vmin=low, vmax=high, rcount=len(result.y),
        ccount=len(result.x),
    )  # fmt: skip
    ax.set(xlabel="along d", ylabel="along e", zlabel="NLL (nats)")
    return ax
