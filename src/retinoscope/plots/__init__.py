"""One figure per file; the only room that imports matplotlib."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from retinoscope.core.result import Result


def plot(result: Result, ax: Axes | None = None) -> Axes:
    """Draw a result: as its own file here says, or from the axes that it declares."""
    own = f"{__name__}.{result.probe}"
    name = own if find_spec(own) else f"{__name__}.declared"
    return import_module(name).plot(result, ax)
