"""All colours of figures, from matplotlib's tables; the only file here that imports matplotlib.

Grey for attention and blue for subsampling are the colours of Park & Kim (2022, arXiv:2202.06709).
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from matplotlib import colormaps
from matplotlib.colors import ListedColormap, to_hex

Table = Literal["sequential", "diverging", "categorical"]

_TABLES: dict[str, tuple[str, float]] = {
    "sequential": ("viridis", 0.88),
    "diverging": ("RdBu_r", 1),
}
"""Matplotlib's name, and the fraction of the table that is used: the lightest yellow is invisible
on white."""
_CATEGORICAL = ("Dark2", "tab10")
"""Tables of distinct colours; the second is used when the first is exhausted."""
_STEPS = 256

INK = "#1f4e79"
"""The colour of a single line."""
BAR = "#7fa3c7"
HOLE = "#d9dce1"
"""The colour of values that are not finite."""
CENTRE = "#b3261e"
OPACITY = 0.65
"""Of coloured images that are drawn over others."""
BANDS = {
    "attention": "#d4d4d4",
    "channel_attention": "#e3d9ea",
    "token_mlp": "#f7edcb",
    "pool": "#dceaf7",
    "subsampling": "#c3dbf0",
    "other": "#f8dedb",
    "stem": "#f4f4f4",
}
"""Backgrounds for kinds of units."""


@cache
def colormap(table: Table = "sequential") -> ListedColormap:
    """The table as a matplotlib colour map."""
    name, share = _TABLES[table]
    places = [share * step / (_STEPS - 1) for step in range(_STEPS)]
    return ListedColormap(colormaps[name](places), name=f"retinoscope_{table}")


@cache
def _written(table: Table) -> tuple[str, ...]:
    return tuple(to_hex(colour) for colour in colormap(table)(range(_STEPS)))


def shade(share: float, table: Table = "sequential") -> str:
    """A web colour for a value from 0 to 1; values outside get the colour of the nearest end.

    Example:
        >>> shade(0.0), shade(0.5, "diverging")
        ('#440154', '#f7f6f6')
    """
    return _written(table)[min(_STEPS - 1, max(0, int(share * _STEPS)))]


def apart(index: int) -> str:
    """A web colour that is distinct from those of the other indices.

    Example:
        >>> apart(0) != apart(1)
        True
    """
    tables = [colormaps[name] for name in _CATEGORICAL]
    every = [table(place) for table in tables for place in range(table.N)]
    return to_hex(every[index % len(every)])


def resolved(table: Table | None, at: float) -> str:
    """The web colour at an index or position of a table; ink if there is no table."""
    if table is None:
        return INK
    return apart(int(at)) if table == "categorical" else shade(at, table)
