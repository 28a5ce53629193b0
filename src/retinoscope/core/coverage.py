"""Which units of an anatomy a result covers, and why it does not cover the others."""

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
    """The units that the rows of a result refer to, and the units without a row.

    The first four fields have one entry per measured unit, in the order of the anatomy.
    """

    units: tuple[str, ...]
    kinds: tuple[str, ...]
    stages: tuple[int | None, ...]
    subsamples: tuple[bool, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """Units that were not measured, with the reason."""


def measured_in(anatomy: Anatomy, partials: Iterable[Mapping[str, Any]]) -> list[Unit]:
    """The units for which partials contain arrays (named ``UNIT/…``).

    Example:
        >>> from retinoscope.core.unit import Kind
        >>> stem, head = (Unit(n, Kind.OTHER, None, 0, False, False, None, 1, 0, 0) for n in "sh")
        >>> [unit.name for unit in measured_in(Anatomy("tiny", (stem, head)), [{"s/level": 1}])]
        ['s']
    """
    held = {key.rpartition("/")[0] for partial in partials for key in partial}
    return [unit for unit in anatomy if unit.name in held]


def covered(anatomy: Anatomy, measured: Container[str], reason: str = "") -> Coverage:
    """The coverage of the measured units; the others get ``reason``, or what their state lacks.

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
    """A paper's claim about how kinds of units change a measured quantity."""

    source: str
    """The citation within a sentence."""
    lowers: tuple[str, ...] = ()
    """Kinds of units that lower the quantity."""
    raises: tuple[str, ...] = ()
    """Kinds of units that raise the quantity."""

    def against(self, kind: str, steps: np.ndarray) -> str:
        """A remark if most units of a kind do the opposite; empty otherwise.

        Example:
            >>> claim = Claim("Park & Kim (2022)", lowers=("conv",))
            >>> claim.against("conv", np.array([1.0, 2.0, -1.0]))
            ', in contrast to Park & Kim (2022), who find that conv units lower it'
        """
        opposite = {"lower": steps > 0, "raise": steps < 0}
        for verb, claimed in (("lower", self.lowers), ("raise", self.raises)):
            if kind in claimed and 2 * int(opposite[verb].sum()) > len(steps):
                return (
                    f", in contrast to {self.source}, who find that {_words(kind)} units {verb} it"
                )
        return ""


def by_kind(
    kinds: Sequence[str],
    subsamples: Sequence[bool],
    steps: np.ndarray,
    changed: str,
    claim: Claim | None = None,
) -> list[str]:
    """For each kind of unit: how many units lower the measured quantity, and the median step.

    Units that subsample are not counted, because their input and output maps differ in size; the
    text says how many.

    Args:
        kinds: The kind of each unit.
        subsamples: Whether each unit subsamples; empty if unknown.
        steps: The change caused by each unit; NaN if unknown.
        changed: The measured quantity, in words.
        claim: A paper's claim; the text says if most units do the opposite.

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


def stage_ends(
    kinds: Sequence[str], stages: Sequence[int | None]
) -> dict[str, list[tuple[int, int]]]:
    """By kind, the indices of its first and last unit in each stage that has several.

    Example:
        >>> stage_ends(("conv", "mlp", "conv", "conv", "conv"), (1, 1, 1, 1, 2))
        {'conv': [(0, 3)]}
    """
    members: dict[tuple[str, int], list[int]] = {}
    for index, (kind, stage) in enumerate(zip(kinds, stages, strict=True)):
        if stage is not None:
            members.setdefault((kind, stage), []).append(index)
    found: dict[str, list[tuple[int, int]]] = {}
    for (kind, _), indices in members.items():
        if len(indices) > 1:
            found.setdefault(kind, []).append((indices[0], indices[-1]))
    return found


def _left_out(smaller: int, without: int) -> str:
    """The number of units of a kind that are not counted, with the reason."""
    said = f"; {smaller} that subsample{'s is' if smaller == 1 else ' are'} not counted"
    other = f"; {without} whose input has no maps {'is' if without == 1 else 'are'} not counted"
    return said * bool(smaller) + other * bool(without)


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _reason(unit: Unit) -> str:
    if unit.grid is None:
        return "its state has no grid"
    if unit.grid.resolution == (1, 1):
        return "its map has only one position"
    return (
        "its map has only one row or column" if min(unit.grid.resolution) == 1 else "not measured"
    )
