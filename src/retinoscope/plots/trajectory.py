"""The path of the weights in its principal plane (Li et al., 2018, arXiv:1712.09913, section 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from retinoscope.probes.trajectory import TrajectoryResult


def plot(result: TrajectoryResult, ax: Axes | None = None) -> Axes:
    """Every snapshot with its name, in the colour of its loss."""
    ax = ax or Figure(figsize=(4.4, 3.6), layout="constrained").add_subplot()
    ax.plot(result.first, result.second, color="#9aa3ae", linewidth=1, zorder=1)
    points = ax.scatter(result.first, result.second, c=result.nll, cmap="viridis", zorder=2)
    if np.isfinite(result.nll).any():
        ax.figure.colorbar(points, ax=ax, label="NLL (nats)")
    for name, x, y in zip(result.snapshots, result.first, result.second, strict=True):
        if np.isfinite(x) and np.isfinite(y):
            ax.annotate(name, (x, y), (4, 4), textcoords="offset points", fontsize="x-small")
    shares = [f" ({share:.0%})" for share in result.explained or ()] or ["", ""]
    ax.set(
        xlabel=f"first principal direction{shares[0]}",
        ylabel=f"second principal direction{shares[1]}",
    )
    return ax
