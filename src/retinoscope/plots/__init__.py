"""Figures with matplotlib, for papers and notebooks."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from retinoscope.core.result import Result


def plot(result: Result, ax: Axes | None = None, field: str | None = None) -> Axes:
    """Draw one array of a result in the same way as the report.

    Args:
        result: The result to draw.
        ax: The axes to draw on. Default: a new figure.
        field: The array to draw. Default: the file named after the probe in this package decides,
            if there is one; otherwise the first array with a figure.
    """
    own = f"{__name__}.{result.probe}"
    if field is None and find_spec(own):
        return import_module(own).plot(result, ax)
    declared = import_module(f"{__name__}.declared")
    return declared.plot(result, ax, field)
