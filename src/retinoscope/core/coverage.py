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


@dataclass(frozen=True)
class Claim:
    """What a paper finds that kinds of units do to what is measured."""

    source: str
    """As it is cited in a sentence."""
    lowers: tuple[str, ...] = ()
    """Kinds that lower it."""
    raises: tuple[str, ...] = ()
    """Kinds that raise it."""

    def against(self, kind: str, steps: np.ndarray) -> str:
        """The words where most units of a kind do the opposite; empty where they do not.

        Example:
            >>> claim = Claim("Park & Kim (2022)", lowers=("conv",))
            >>> claim.against("conv", np.array([1.0, 2.0, -1.0]))
            ', against Park & Kim (2022), who find that conv units lower it'
        """
        opposite = {"lower": steps > 0, "raise": steps < 0}
        for verb, claimed in (("lower", self.lowers), ("raise", self.raises)):
            if kind in claimed and 2 * int(opposite[verb].sum()) > len(steps):
                return f", against {self.source}, who find that {_words(kind)} units {verb} it"
        return ""


def by_kind(
    kinds: Sequence[str],
    subsamples: Sequence[bool],
    steps: np.ndarray,
    changed: str,
    claim: Claim | None = None,
) -> list[str]:
    """For each kind of unit, how many lower what is measured, and the median step.

    Units that subsample are not counted, which is said: their input and output maps differ in size.

    Args:
        kinds: Of the units.
        subsamples: Whether they subsample; empty where that is not known.
        steps: What each does; NaN where that is not known.
        changed: To what, in words.
        claim: What a paper finds; where most units do the opposite, that is said.

    Example:
        >>> steps = np.array([-2.0, 1.0, 5.0])
        >>> by_kind(("conv",) * 3, (False, False, True), steps, "the loss")
        ['1 of 2 conv units lower the loss (median step −0.5; 1 that subsamples is not counted)']
    """
    smaller = np.array(subsamples, dtype=bool) if len(subsamples) else np.zeros(len(steps), bool)
    said = []
    for kind in dict.fromkeys(kind for kind in kinds if kind not in _NEVER):
        members = np.array(kinds) == kind
        own = steps[members & ~smaller & np.isfinite(steps)]
        without = int((members & ~smaller & ~np.isfinite(steps)).sum())
        left = _left_out(int((members & smaller).sum()), without)
        if own.size:
            median = number(float(np.median(own)), 3, signed=True)
            said.append(
                f"{(own < 0).sum()} of {own.size} {_words(kind)} units lower {changed} "
                f"(median step {median}{left}){claim.against(kind, own) if claim else ''}"
            )
        elif left:
            said.append(f"no {_words(kind)} unit is counted for {changed}: {left.lstrip('; ')}")
    return said


def _left_out(smaller: int, without: int) -> str:
    """How many units of a kind are not counted, and why."""
    said = f"; {smaller} that subsample{'s is' if smaller == 1 else ' are'} not counted"
    other = f"; {without} whose input has no maps {'is' if without == 1 else 'are'} not counted"
    return said * bool(smaller) + other * bool(without)


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _reason(unit: Unit) -> str:
    if unit.grid is None:
        return "its state has no grid"
    if unit.grid.resolution == (1, 1):
        return "its map is a single position"
    return "its map has one row or column only" if min(unit.grid.resolution) == 1 else "not seen"
