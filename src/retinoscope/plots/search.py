"""Draws accuracy over the number of attention units, as in fig. 12a of arXiv:2202.06709."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retinoscope.core.files import write_atomically
from retinoscope.plots.anatomy import picture_format

if TYPE_CHECKING:
    from retinoscope.train.search.search import Search

_STYLE: Any = {"svg.hashsalt": "retinoscope", "svg.fonttype": "none"}
_CHOSE, _TESTED = "#1f5a94", "#999999"


def plot(result: Search, ax: Axes | None = None) -> Axes:
    """Draw the accepted candidates as a line, with a standard deviation over seeds to either side.

    Rejected candidates are hollow, on a dotted line from the network they were built from.
    """
    ax = ax or Figure(figsize=(5, 3.5), layout="constrained").add_subplot()
    kept = np.flatnonzero(result.kept)
    if not np.isnan(result.test_mean).all():
        ax.plot(
            result.msas[kept], result.test_mean[kept], color=_TESTED, linestyle="--", marker="s",
            markersize=3, label="test split, not used for the choice", zorder=1,
        )  # fmt: skip
    ax.errorbar(
        result.msas[kept], result.held_out_mean[kept],
        # A single seed has no deviation.
        yerr=np.nan_to_num(result.held_out_deviation[kept]), color=_CHOSE, marker="o",
        markersize=5, capsize=2, elinewidth=0.8, label=
            "held-out images, used for the choice", zorder=3,
    )  # fmt: skip
    _refused(result, ax)
    for index, plan in enumerate(result.plans):
        ax.annotate(
            " ".join(map(str, plan)), (result.msas[index], result.held_out_mean[index]),
            xytext=(6, -9), textcoords="offset points", fontsize=7,
        )  # fmt: skip
    ax.set(xlabel="attention units", ylabel="accuracy")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.12)
    ax.legend(frameon=False, fontsize=7)
    return ax


def _refused(result: Search, ax: Axes) -> None:
    label, last = "refused", 0
    for index, kept in enumerate(result.kept):
        if kept:
            last = index
            continue
        ends = [last, index]
        ax.plot(
            result.msas[ends], result.held_out_mean[ends], color=_CHOSE, linestyle=":", linewidth=1,
            zorder=1,
        )  # fmt: skip
        ax.errorbar(
            result.msas[[index]], result.held_out_mean[[index]],
            yerr=np.nan_to_num(result.held_out_deviation[[index]]), color=_CHOSE, marker="o",
            markersize=5, markerfacecolor="white", capsize=2, elinewidth=0.8, linestyle="none",
            label=label, zorder=2,
        )  # fmt: skip
        label = ""  # one legend entry for all of them


def draw(result: Search, path: Path) -> None:
    """Draw a search into a file; its ending selects the format."""
    suffix = picture_format(path)
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5, 3.5), layout="constrained")
        plot(result, figure.add_subplot())
        # Without a date, the same search gives the same bytes.
        metadata = {"Date": None} if suffix == "svg" else {}
        figure.savefig(buffer, format=suffix, metadata=metadata, dpi=150)
    write_atomically(path, buffer.getvalue())
