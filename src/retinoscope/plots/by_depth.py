"""Values after each unit over normalised depth, with the kinds of units behind them.

Backgrounds as in Park & Kim (2022, arXiv:2202.06709): grey for attention, blue for subsampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BACKGROUNDS = {"attention": "#d4d4d4", "channel_attention": "#e3d9ea", "token_mlp": "#f7edcb"}
_SUBSAMPLING = "#c3dbf0"


def plot_by_depth(
    values: np.ndarray,
    errors: np.ndarray,
    kinds: Sequence[str],
    subsamples: Sequence[bool],
    label: str,
    ax: Axes | None = None,
) -> Axes:
    """A line with two standard errors to either side, over bands for the kinds."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    count = len(values)
    depth = np.arange(count) / max(1, count - 1)
    half = 0.5 / max(1, count - 1)
    for x, kind, smaller in zip(depth, kinds, subsamples, strict=True):
        colour = _SUBSAMPLING if smaller and x > 0 else _BACKGROUNDS.get(kind)
        if colour:
            ax.axvspan(max(0.0, x - half), min(1.0, x + half), color=colour, linewidth=0)
    ax.fill_between(depth, values - 2 * errors, values + 2 * errors, alpha=0.2, linewidth=0)
    ax.plot(depth, values, marker="o", markersize=3)
    ax.set(xlabel="normalised depth", ylabel=label, xlim=(0, 1))
    return ax
