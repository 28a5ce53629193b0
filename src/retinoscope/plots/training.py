"""Learning curves: how well a network does after each epoch of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from retinoscope.train.curves import LearningCurves


def plot(result: LearningCurves, ax: Axes | None = None) -> Axes:
    """Negative log-likelihood over epochs, of training data as augmented and of test data."""
    ax = _axes(result, ax)
    for split, line in zip(result.splits, result.nll, strict=True):
        ax.plot(result.epoch, line, label=split)
    ax.set(ylabel="NLL (nats)")
    ax.legend(frameon=False)
    return ax


def plot_accuracy(result: LearningCurves, ax: Axes | None = None) -> Axes:
    """Accuracy on test data over epochs."""
    ax = _axes(result, ax)
    ax.plot(result.epoch, result.accuracy)
    ax.set(ylabel="accuracy on test data")
    return ax


def _axes(result: LearningCurves, ax: Axes | None) -> Axes:
    """Axes over epochs; the end of the warm-up is a dashed line."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    for place, _ in result.phases:
        ax.axvline(place, color="#888888", linewidth=0.8, linestyle="--")
    ax.set(xlabel="epoch")
    return ax
