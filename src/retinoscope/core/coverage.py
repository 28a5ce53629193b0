"""Which units of an anatomy a result speaks of, and why not of the others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.unit import Unit


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


def covered(anatomy: Anatomy, measured: Container[str]) -> dict[str, Any]:
    """The fields ``units``, ``kinds``, ``stages``, ``subsamples`` and ``skipped`` of a result.

    Example:
        >>> from retinoscope.core.unit import Kind
        >>> head = Unit("head", Kind.HEAD, None, 0, False, False, None, 10, 0, 0)
        >>> covered(Anatomy("tiny", (head,)), ())["skipped"]
        (('head', 'its state has no grid'),)
    """
    units = [unit for unit in anatomy if unit.name in measured]
    return {
        "units": tuple(unit.name for unit in units),
        "kinds": tuple(str(unit.kind) for unit in units),
        "stages": tuple(unit.stage for unit in units),
        "subsamples": tuple(unit.subsamples for unit in units),
        "skipped": tuple((u.name, _reason(u)) for u in anatomy if u.name not in measured),
    }


def _reason(unit: Unit) -> str:
    if unit.grid is None:
        return "its state has no grid"
    if unit.grid.resolution == (1, 1):
        return "its map is a single position"
    return "its map has one row or column only" if min(unit.grid.resolution) == 1 else "not seen"
