"""Draws eigenvalues of the Hessian as in figs 1 and 4 of Park & Kim (2022, arXiv:2202.06709)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from retinoscope.figures.compare import overlaid
from retinoscope.figures.describe import figure
from retinoscope.figures.figure import Lines
from retinoscope.plots.draw import draw

if TYPE_CHECKING:
    from retinoscope.probes.hessian import HessianResult


def plot(result: HessianResult, ax: Axes | None = None) -> Axes:
    """Draw the density of the eigenvalues, with different colours below and above 0."""
    sides = [side for side in ("negative", "positive") if getattr(result, side).size]
    charts = [figure(result, side).chart for side in sides or ("negative",)]
    ax = draw(overlaid([c for c in charts if isinstance(c, Lines)], sides or ("none",)), ax)
    ax.axvline(0, color="#666666", linewidth=0.8)
    return ax
