"""Values after each unit over normalised depth, with the kinds of units behind them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retinoscope.core.result import Result
from retinoscope.plots.bands import BANDS

_SHOWN = ("attention", "channel_attention", "token_mlp")
"""Kinds with a background; that of subsampling goes before."""


def plot_by_depth(result: Result, name: str, ax: Axes | None = None) -> Axes:
    """An array with a value per unit: a line with two standard errors to either side."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    about, values = result.described()[name].metadata, getattr(result, name)
    errors = getattr(result, about["error"])
    count = len(values)
    depth = np.arange(count) / max(1, count - 1)
    half = 0.5 / max(1, count - 1)
    facts = result.values()
    for x, kind, smaller in zip(depth, facts["kinds"], facts["subsamples"], strict=True):
        shown = "subsampling" if smaller and x > 0 else kind if kind in _SHOWN else None
        if shown:
            ax.axvspan(max(0.0, x - half), min(1.0, x + half), color=BANDS[shown], linewidth=0)
    ax.fill_between(depth, values - 2 * errors, values + 2 * errors, alpha=0.2, linewidth=0)
    ax.plot(depth, values, marker="o", markersize=3)
    ax.set(xlabel="normalised depth", ylabel=about["unit"], xlim=(0, 1))
    if about["changes"]:
        ax.axhline(0, color="#666666", linewidth=0.8)
    return ax
