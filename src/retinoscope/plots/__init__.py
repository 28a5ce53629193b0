"""Figures with matplotlib, for papers and notebooks."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from retinoscope.core.result import Result


def plot(result: Result, ax: Axes | None = None, field: str | None = None) -> Axes:
    """Draw one array of a result, as its field declares it and as the page shows it.

    Args:
        result: What was measured.
        ax: Where to draw; axes of a new figure if not given.
        field: Which array; the first that has a figure if not given, or what the file of the
            probe's name in this room draws, if there is one.
    """
    own = f"{__name__}.{result.probe}"
    if field is None and find_spec(own):
        return import_module(own).plot(result, ax)
    declared = import_module(f"{__name__}.declared")
    return declared.plot(result, ax, field)
