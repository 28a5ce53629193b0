"""An anatomy as a table for the terminal, and what the command's options mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from rich.table import Table
from rich.text import Text

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.unit import Kind, Unit

_STYLES = {
    Kind.ATTENTION: "bold magenta",
    Kind.CHANNEL_ATTENTION: "magenta",
    Kind.CONV: "cyan",
    Kind.MLP: "green",
    Kind.TOKEN_MLP: "yellow",
    Kind.POOL: "blue",
    Kind.OTHER: "red",
    Kind.STEM: "dim",
    Kind.HEAD: "dim",
}


def anatomy_table(anatomy: Anatomy) -> Table:
    """One row per unit; inner units are indented below the unit that they make up."""
    height, width = anatomy.image[1:]
    total = max(1, anatomy.flops)
    table = Table(
        title=f"{anatomy.model} — {anatomy.weights} — {height}×{width} px",
        caption=_caption(anatomy),
        title_justify="left",
        caption_justify="left",
        header_style="bold underline",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("unit", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for column in ("stage", "grid", "channels", "params", "FLOPs"):
        table.add_column(column, justify="right", no_wrap=True)
    stage = None
    for unit, indent, outer in _rows(anatomy.units):
        if not indent and unit.stage != stage:
            table.add_row()
            stage = unit.stage
        kind = Text(unit.kind, _STYLES[unit.kind])
        kind.append(" +" * unit.residual + " ↓" * unit.subsamples, "bold blue")
        table.add_row(
            Text("  " * indent + unit.name.removeprefix(outer), "dim" if indent else ""),
            kind,
            "" if unit.stage is None else str(unit.stage),
            str(unit.grid) if unit.grid else "no grid",
            str(unit.channels),
            brief(unit.parameters),
            f"{100 * unit.flops / total:.1f} %",
        )
    return table


def _caption(anatomy: Anatomy) -> str:
    notes = [f"\n{unit.name}: {unit.note}" for unit in anatomy.walk() if unit.note]
    return (
        f"{anatomy.summary()} · {brief(anatomy.parameters)} parameters · "
        f"{brief(anatomy.flops)} FLOPs per image · + residual · ↓ subsampling{''.join(notes)}"
    )


def _rows(
    units: tuple[Unit, ...], indent: int = 0, outer: str = ""
) -> Iterator[tuple[Unit, int, str]]:
    """Each unit, how deep it lies, and the beginning of its name that need not be repeated."""
    for unit in units:
        yield unit, indent, outer
        names = [unit.name, *(inner.name for inner in unit.inner)]
        parts = zip(*(name.split(".") for name in names), strict=False)
        shared = [part[0] for part in takewhile(lambda part: len(set(part)) == 1, parts)]
        yield from _rows(unit.inner, indent + 1, "".join(f"{name}." for name in shared))


def brief(number: float) -> str:
    """A number with three digits and a unit.

    Example:
        >>> brief(25_557_032), brief(512)
        ('25.6 M', '512')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:g}"


def saved_as(path: Path, model: str, models: int) -> Path:
    """The file for one of several models: its name goes before the ending, made safe.

    Example:
        >>> saved_as(Path("a.json"), "torchvision:resnet50", 2).name
        'a.torchvision-resnet50.json'
    """
    safe = re.sub(r"[^A-Za-z0-9._=,-]+", "-", model).strip("-.")
    return path if models == 1 else path.with_name(f"{path.stem}.{safe}{path.suffix}")
