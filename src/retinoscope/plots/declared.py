"""A result without a figure of its own, drawn from the axes that it declares."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retinoscope.core.errors import WrongInput
from retinoscope.core.result import Result


def plot(result: Result, ax: Axes | None = None) -> Axes:
    """The first array that is worth a picture: a map, a line, or one line per row."""
    described = result.described()
    name = next((n for n, f in described.items() if f.metadata["figure"]), None)
    if name is None:
        raise WrongInput(f"A result of {result.probe} has no array to draw.")
    about, values = described[name].metadata, getattr(result, name)
    if about.get("y") and min(values.shape) > 1:
        ax = plot_map(result, name, ax)
        ax.set(title=about["title"])
        return ax
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    if values.ndim == 1 or not about["x"]:
        ax.plot(values.T)
    else:
        ax.plot(getattr(result, about["x"]).T, values.T)
    ax.set(xlabel=about["axes"][-1], ylabel=about["unit"], title=about["title"])
    return ax


def plot_map(result: Result, name: str, ax: Axes | None = None) -> Axes:
    """An array over two axes as a heat map with iso-lines; grey where it is no finite number."""
    ax = ax or Figure(figsize=(4.4, 3.6), layout="constrained").add_subplot()
    described = result.described()
    about, values = described[name].metadata, getattr(result, name)
    x, y = getattr(result, about["x"]), getattr(result, about["y"])
    shown = np.ma.masked_invalid(values)
    low, high = ends(values)
    ax.set_facecolor("#d9dce1")
    mesh = ax.pcolormesh(x, y, shown, shading="nearest", vmin=low, vmax=high)
    levels = np.linspace(low, high, 10)[1:-1]
    if ((shown.min() < levels) & (levels < shown.max())).any():
        ax.contour(x, y, shown, levels, colors="white", linewidths=0.7, alpha=0.8)
    beyond = "max" if shown.count() and shown.max() > high else "neither"
    ax.figure.colorbar(mesh, ax=ax, label=about["unit"], extend=beyond)
    labels = {f"{k}label": described[about[k]].metadata["unit"] or about[k] for k in ("x", "y")}
    ax.set(**labels)
    return ax


def ends(values: np.ndarray) -> tuple[float, float]:
    """From the lowest value to the highest, or to five times the height of the median.

    So a few very large values do not make all others look alike.
    """
    finite = values[np.isfinite(values)]
    if not finite.size or finite.min() == finite.max():
        low = float(finite[0]) if finite.size else 0.0
        return low, low + (0.1 * abs(low) or 0.1)
    low, middle, high = np.quantile(finite, (0, 0.5, 1)).tolist()
    limit = low + 5 * (middle - low)
    return low, limit if low < limit < high else high
