"""Shows results as figures in notebooks, with one IPython formatter for all results."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from retinoscope.core.errors import WrongInput
from retinoscope.core.result import Result
from retinoscope.plots import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_png(result: Result) -> bytes | None:
    """The figure of a result as PNG; None if there is nothing to draw."""
    try:
        figure: Figure = plot(result).figure  # pyright: ignore[reportAssignmentType]
    except WrongInput:
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def register() -> None:
    """Register the formatter with IPython, if it is running."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["image/png"]  # pyright: ignore
        formatter.for_type(Result, as_png)
