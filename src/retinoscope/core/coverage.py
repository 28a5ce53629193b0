"""Which units of an anatomy a result speaks of, and why not of the others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.unit import Unit
from retinoscope.core.wording import number

_NEVER = ("stem", "head")


@dataclass(frozen=True)
class Coverage:
    """The units that the rows of a result stand for, and those that have none.

    The first four have an entry per measured unit, in the order of the anatomy.
    """

    units: tuple[str, ...]
    kinds: tuple[str, ...]
    stages: tuple[int | None, ...]
    subsamples: tuple[bool, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """Units that were not measured, and why."""


def measured_in(anatomy: Anatomy, partials: Iterable[Mapping[str, Any]]) -> list[Unit]:
    """The units of which partials hold arrays; these are called ``UNIT/…``.

    Example:
        >>> from retinoscope.core.unit import Kind
        >>> stem, head = (Unit(n, Kind.OTHER, None, 0, False, False, None, 1, 0, 0) for n in "sh")
        >>> [unit.name for unit in measured_in(Anatomy("tiny", (stem, head)), [{"s/level": 1}])]
        ['s']
    """
    held = {key.rpartition("/")[0] for partial in partials for key in partial}
    return [unit for unit in anatomy if unit.name in held]


def covered(anatomy: Anatomy, measured: Container[str], reason: str = "") -> Coverage:
    """Which units were measured; of the others, ``reason`` or what their state lacks.

    Example:
        >>> from retinoscope.core.unit import Kind
        >>> head = Unit("head", Kind.HEAD, None, 0, False, False, None, 10, 0, 0)
        >>> covered(Anatomy("tiny", (head,)), ()).skipped
        (('head', 'its state has no grid'),)
    """
    units = [unit for unit in anatomy if unit.name in measured]
    return Coverage(
        units=tuple(unit.name for unit in units),
        kinds=tuple(str(unit.kind) for unit in units),
        stages=tuple(unit.stage for unit in units),
        subsamples=tuple(unit.subsamples for unit in units),
        skipped=tuple((u.name, reason or _reason(u)) for u in anatomy if u.name not in measured),
    )


def by_kind(
    kinds: Sequence[str], subsamples: Sequence[bool], steps: np.ndarray, changed: str
) -> list[str]:
    """For each kind of unit, how many lower what is measured, and the median step.

    Units that subsample are left out: their input and output maps differ in size.

    Example:
        >>> import numpy as np
        >>> by_kind(("conv", "conv"), (False, False), np.array([-2.0, 1.0]), "the variance")
        ['1 of 2 conv units lower the variance (median step −0.5)']
    """
    counted = np.isfinite(steps)
    if len(subsamples):
        counted &= ~np.array(subsamples, dtype=bool)
    said = []
    for kind in dict.fromkeys(kinds):
        own = steps[counted & (np.array(kinds) == kind)]
        if own.size and kind not in _NEVER:
            said.append(
                f"{(own < 0).sum()} of {own.size} {kind.replace('_', ' ')} units lower {changed} "
                f"(median step {number(float(np.median(own)), 3, signed=True)})"
            )
    return said


def _reason(unit: Unit) -> str:
    if unit.grid is None:
        return "its state has no grid"
    if unit.grid.resolution == (1, 1):
        return "its map is a single position"
    return "its map has one row or column only" if min(unit.grid.resolution) == 1 else "not seen"
