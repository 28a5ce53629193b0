"""Relative log amplitudes as in figures 2a and 8 of Park & Kim (2022, arXiv:2202.06709)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retinoscope.plots.by_depth import plot_by_depth

if TYPE_CHECKING:
    from retinoscope.probes.fourier import FourierResult


def plot(result: FourierResult, ax: Axes | None = None) -> Axes:
    """One curve per unit over frequency (fig. 2a); early units are dark, late ones light."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    colours = colormaps["viridis"]
    rows = zip(result.units, result.frequency, result.log_amplitude, strict=True)
    for depth, (unit, frequency, line) in enumerate(rows):
        ax.plot(frequency, line, color=colours(0.9 * depth / len(result.units)), label=unit)
    ax.set(xlabel="frequency (π rad/px)", ylabel="Δ log amplitude", xlim=(0, 1))
    return ax


def plot_high(result: FourierResult, ax: Axes | None = None) -> Axes:
    """The highest frequency over depth (fig. 8)."""
    return plot_by_depth(result, "high", ax)


def plot_step(result: FourierResult, ax: Axes | None = None) -> Axes:
    """What each unit does to the highest frequency; below 0 it is a low-pass filter."""
    return plot_by_depth(result, "high_step", ax)
