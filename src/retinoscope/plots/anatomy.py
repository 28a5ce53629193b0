"""Pictures of anatomies: kinds as colours, resolution as height, stages as groups.

Colours as in Park & Kim (2022, arXiv:2202.06709): white for convolutions and MLPs, grey for
attention, blue for subsampling.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import WrongInput
from retinoscope.core.files import write_atomically
from retinoscope.core.unit import Kind, Unit

_INK = "#333333"
_BLUE = "#8fb8de"
_FILLS = {
    Kind.STEM: "#eeeeee",
    Kind.CONV: "#ffffff",
    Kind.MLP: "#ffffff",
    Kind.TOKEN_MLP: "#f3e3b3",
    Kind.ATTENTION: "#9e9e9e",
    Kind.CHANNEL_ATTENTION: "#cbb7d6",
    Kind.POOL: "#d6e6f5",
    Kind.OTHER: "#f2c6c2",
    Kind.HEAD: "#eeeeee",
}
_HATCHES = {Kind.MLP: "----", Kind.STEM: "////", Kind.HEAD: "\\\\\\\\"}
_STYLE: Any = {"svg.hashsalt": "retinoscope", "svg.fonttype": "none", "hatch.linewidth": 0.3}
_FORMATS = {".svg": "svg", ".png": "png", ".pdf": "pdf"}


def draw(anatomies: Sequence[Anatomy], path: Path) -> None:
    """Draw the anatomies below each other, on a common scale, into a file."""
    suffix = picture_format(path)
    with mpl.rc_context(_STYLE):
        write_atomically(path, _rendered(anatomies, suffix))


def _rendered(anatomies: Sequence[Anatomy], suffix: str) -> bytes:
    widest = max(sum(_width(u) for u in anatomy) for anatomy in anatomies)
    figure = Figure(figsize=(1.2 + 0.2 * widest, 0.5 + 1.9 * len(anatomies)), layout="constrained")
    panels = figure.subplots(len(anatomies), 1, squeeze=False, sharex=True)[:, 0]
    for anatomy, ax in zip(anatomies, panels, strict=True):
        plot(anatomy, ax, _tallest(anatomies))
        ax.set_xlim(-0.5, widest + 0.5)
    handles = legend(anatomies)
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    buffer = io.BytesIO()
    # Without a date, the same anatomy gives the same bytes.
    metadata = {"Date": None} if suffix == "svg" else {}
    figure.savefig(buffer, format=suffix, metadata=metadata, dpi=150)
    return buffer.getvalue()


def picture_format(path: Path) -> str:
    """The image format that a file's ending selects."""
    if path.suffix not in _FORMATS:
        raise WrongInput(
            f"The file name of a picture must end in {', '.join(_FORMATS)}; got {str(path)!r}."
        )
    return _FORMATS[path.suffix]


def plot(anatomy: Anatomy, ax: Axes | None = None, tallest: float | None = None) -> Axes:
    """Draw one anatomy: one box per unit, of height 1 + log₂ of the rows of its map.

    Args:
        anatomy: The anatomy to draw.
        ax: The axes to draw on. Default: a new figure.
        tallest: The height of the tallest box, to draw several anatomies on a common scale.
            Default: that of this anatomy.
    """
    middle = max(4.0, (tallest or _tallest([anatomy])) / 2 - 0.2)
    ax = ax or Figure(figsize=(10, 2), layout="constrained").add_subplot()
    left = 0.0
    places: list[tuple[Unit, float, float]] = []
    for unit in anatomy:
        width = _width(unit)
        _box(ax, unit, left, width, middle)
        places.append((unit, left, width))
        left += width
    for _, group in groupby(
        places,
        key=lambda place: (place[0].stage, place[0].kind if place[0].stage is None else None),
    ):
        members = list(group)
        _label(ax, [m[0] for m in members], members[0][1], members[-1][1] + members[-1][2])
    image = "×".join(map(str, anatomy.image[1:]))
    ax.set_title(
        f"{anatomy.model}  ({anatomy.weights}, {image})", loc="left", fontsize=9, color=_INK
    )
    ax.set(ylim=(-2.9, 2 * middle + (0.2 if middle == 4 else 0.6)), xlim=(-0.5, left + 0.5))
    ax.axis("off")
    return ax


def legend(anatomies: Sequence[Anatomy]) -> list[Patch]:
    """One patch per kind that occurs, and one for subsampling."""
    kinds = [kind for kind in Kind if any(u.kind is kind for a in anatomies for u in a.walk())]
    patches = [
        Patch(
            facecolor=_FILLS[k],
            edgecolor=_INK,
            hatch=_HATCHES.get(k),
            label=k.replace("_", " "),
            lw=0.6,
        )
        for k in kinds
    ]
    return [*patches, Patch(facecolor=_BLUE, edgecolor=_INK, label="subsampling", lw=0.6)]


def _width(unit: Unit) -> float:
    return max(1.0, 0.55 * len(unit.inner) + 0.3)


def _height(unit: Unit) -> float:
    return 1.0 + (math.log2(unit.grid.height) if unit.grid else 0.0)


def _tallest(anatomies: Sequence[Anatomy]) -> float:
    return max((_height(unit) for anatomy in anatomies for unit in anatomy), default=1.0)


def _box(ax: Axes, unit: Unit, left: float, width: float, middle: float) -> None:
    height = _height(unit)
    fill = _BLUE if unit.subsamples and unit.kind is not Kind.STEM else _FILLS[unit.kind]
    style: dict[str, Any] = dict(
        facecolor=fill, edgecolor=_INK, linewidth=0.6, hatch=_HATCHES.get(unit.kind)
    )
    ax.add_patch(Rectangle((left + 0.08, middle - height / 2), width - 0.16, height, **style))
    for index, inner in enumerate(unit.inner):
        x = left + 0.2 + 0.55 * index
        part = dict(
            style, facecolor=_FILLS[inner.kind], hatch=_HATCHES.get(inner.kind), linewidth=0.4
        )
        ax.add_patch(Rectangle((x, middle - 0.3 * height), 0.45, 0.6 * height, **part))


def _label(ax: Axes, units: Sequence[Unit], left: float, right: float) -> None:
    last = units[-1]
    middle = (left + right) / 2
    text = last.kind if last.stage is None else str(last.grid or "no grid")
    ax.plot([left + 0.15, right - 0.15], [-0.5, -0.5], color=_INK, lw=0.6)
    style: dict[str, Any] = dict(ha="center", va="top", color=_INK)
    narrow = right - left < 2.5
    ax.text(middle, -0.8 if last.stage else -1.9, text, fontsize=5 if narrow else 7, **style)
    if last.stage is not None:
        ax.text(middle, -1.9, f"{last.channels} ch", fontsize=5 if narrow else 6, **style)
