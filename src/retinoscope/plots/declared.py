"""A result without a figure of its own, drawn from the axes that it declares."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retinoscope.core.errors import WrongInput
from retinoscope.core.result import Result


def plot(result: Result, ax: Axes | None = None) -> Axes:
    """The first array that is worth a picture: a line, or one line per row."""
    described = result.described()
    name = next((n for n, f in described.items() if f.metadata["figure"]), None)
    if name is None:
        raise WrongInput(f"A result of {result.probe} has no array to draw.")
    about, values = described[name].metadata, getattr(result, name)
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    if values.ndim == 1 or not about["x"]:
        ax.plot(values.T)
    else:
        ax.plot(getattr(result, about["x"]).T, values.T)
    ax.set(xlabel=about["axes"][-1], ylabel=about["unit"], title=about["title"])
    return ax
