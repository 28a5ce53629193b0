"""Lesions: the parts of a network that can be removed or replaced.

A removed part is an edit of the graph: the output of a residual unit becomes its skip operand, that
of a convolution its input. A replaced part is a slice of a value: a head of an attention's output,
or a token of a state. :mod:`retinoscope.anatomy.suffixes` runs the network without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Protocol

from torch import Tensor, fx

from retinoscope.anatomy.attentions import attentions
from retinoscope.anatomy.graph.flow import operation
from retinoscope.anatomy.heads import heads_of
from retinoscope.anatomy.layout import Lens
from retinoscope.anatomy.replay import Replay
from retinoscope.anatomy.units.names import Unique
from retinoscope.core.unit import Unit

_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}


class Slices(Protocol):
    """How to view a value as slices of which one is replaced: heads, or prefix tokens."""

    def seen(self, value: Tensor) -> Tensor:
        """The slices (N, slices, …)."""
        ...

    def replaced(self, value: Tensor, number: int, by: Tensor) -> Tensor:
        """The value with one slice replaced by a tensor (N or 1, …)."""
        ...


@dataclass(frozen=True)
class Slot:
    """One slice of the value of a node."""

    node: fx.Node
    slices: Slices
    number: int


@dataclass(frozen=True)
class Lesion:
    """A part of a network that can be removed or replaced."""

    name: str
    units: tuple[Unit, ...]
    """The units that it belongs to."""
    start: int
    """The index in the chain of the first segment that it changes."""
    swapped: Mapping[int, Mapping[fx.Node, fx.Node]] = field(default_factory=dict)
    """What is removed: by segment, nodes and the earlier nodes that replace them."""
    slot: Slot | None = None
    """What is replaced instead."""
    span: tuple[fx.Node, fx.Node] | None = None
    """The states before and after, if it is one whole unit."""


@dataclass(frozen=True)
class _Tokens:
    """Views a state as prefix tokens."""

    lens: Lens

    def seen(self, value: Tensor) -> Tensor:
        tokens = self.lens.prefix(value)
        assert tokens is not None  # only states with prefix tokens have slots
        return tokens

    def replaced(self, value: Tensor, number: int, by: Tensor) -> Tensor:
        tokens = self.seen(value).clone()
        tokens[:, number] = by
        return self.lens.raw(self.lens.maps(value), tokens)


def unit_lesions(replay: Replay, chosen: Sequence[str] = ()) -> list[Lesion]:
    """Each residual unit, including inner ones, or those chosen by name."""
    found = [replay.anatomy[name] for name in chosen] or [
        unit for unit in replay.anatomy.walk() if unit.residual
    ]
    pieces = replay.dissection.pieces
    lesions = [
        replace(_without(replay, u.name, (u,)), span=(pieces[u.name].entry, pieces[u.name].exit))
        for u in found
    ]
    return sorted(lesions, key=lambda lesion: lesion.start)


def stage_lesions(replay: Replay) -> list[Lesion]:
    """All residual units of each stage together."""
    stages: dict[int | None, list[Unit]] = {}
    for unit in _outermost(replay.anatomy.units):
        stages.setdefault(unit.stage, []).append(unit)
    return [_without(replay, f"stage {stage}", units) for stage, units in stages.items()]


def pair_lesions(replay: Replay) -> list[Lesion]:
    """Each residual unit together with the next one."""
    pairs = pairwise(_outermost(replay.anatomy.units))
    return [_without(replay, " + ".join(u.name for u in pair), pair) for pair in pairs]


def convolution_lesions(replay: Replay, chosen: Sequence[str] = ()) -> list[Lesion]:
    """Each spatial convolution in a block whose input and output have the same shape."""
    found: list[Lesion] = []
    unique = Unique()  # a module that runs twice gives two lesions
    flow, paths = replay.dissection.flow, replay.dissection.flow.source.paths
    for index, unit in enumerate(replay.anatomy):
        piece = replay.dissection.pieces[unit.name]
        for node in piece.nodes if piece.block else ():
            if operation(node) not in _CONVOLUTIONS or node.args[0] not in flow.dependent:
                continue
            before, weight = node.args[0], node.args[1]
            assert isinstance(before, fx.Node)
            assert isinstance(weight, fx.Node)
            if prod(flow.shape(weight)[2:]) > 1 and flow.shape(before) == flow.shape(node):
                owner = _owner(replay, unit, node)
                name = unique(paths[node][-1] if paths[node] else owner.name)
                found.append(Lesion(name, (owner,), index, {index: {node: before}}))
    return _of(replay, found, chosen)


def head_lesions(replay: Replay, chosen: Sequence[str] = ()) -> list[Lesion]:
    """Each head of each attention whose heads the graph shows: its output, before the projection.

    An attention may belong to any unit, residual or not.
    """
    found: list[Lesion] = []
    for index, unit in enumerate(replay.anatomy):
        seen: dict[str, int] = {}
        for attention in attentions(replay.dissection, replay.dissection.pieces[unit.name].nodes):
            heads = heads_of(replay.dissection, attention) if attention else None
            if attention is None or heads is None:
                continue
            owner = _owner(replay, unit, attention.node)
            seen[owner.name] = seen.get(owner.name, 0) + 1
            which = f" attention {seen[owner.name]}" if seen[owner.name] > 1 else ""
            for head in range(heads.count):
                slot = Slot(attention.node, heads, head)
                found.append(Lesion(f"{owner.name}{which} head {head}", (owner,), index, slot=slot))
    return _of(replay, found, chosen)


def prefix_lesions(replay: Replay, chosen: Sequence[str] = ()) -> list[Lesion]:
    """Each prefix token in the state after each unit that has prefix tokens."""
    found: list[Lesion] = []
    for index, unit in enumerate(replay.anatomy):
        view = replay.dissection.lenses[unit.name]
        for token in range(view.grid.prefix if view else 0):
            assert view is not None
            slot = Slot(replay.dissection.pieces[unit.name].exit, _Tokens(view), token)
            found.append(Lesion(f"{unit.name} token {token}", (unit,), index, slot=slot))
    return _of(replay, found, chosen)


FINDERS: Mapping[str, Callable[..., list[Lesion]]] = {
    "units": unit_lesions, "stages": stage_lesions, "pairs": pair_lesions,
    "convolutions": convolution_lesions, "heads": head_lesions, "prefix": prefix_lesions,
}  # fmt: skip
"""By what is removed; only some take names of units."""


def _without(replay: Replay, name: str, units: Sequence[Unit]) -> Lesion:
    swapped: dict[int, dict[fx.Node, fx.Node]] = {}
    for unit in units:
        swapped.setdefault(replay.index(unit), {}).update(replay.skip(unit))
    return Lesion(name, tuple(units), min(swapped), swapped)


def _outermost(units: Sequence[Unit]) -> Iterator[Unit]:
    """The residual units that are not inside another one."""
    for unit in units:
        if unit.residual:
            yield unit
        else:
            yield from _outermost(unit.inner)


def _owner(replay: Replay, unit: Unit, node: fx.Node) -> Unit:
    """The innermost unit that a node belongs to."""
    for inner in unit.inner:
        if node in replay.dissection.pieces[inner.name].nodes:
            return _owner(replay, inner, node)
    return unit


def _of(replay: Replay, found: Sequence[Lesion], chosen: Sequence[str]) -> list[Lesion]:
    """The lesions of the chosen units, or of their inner units; all if none is chosen."""
    names = {part.name for name in chosen for part in _walk(replay.anatomy[name])}
    return [one for one in found if not chosen or one.units[0].name in names]


def _walk(unit: Unit) -> Iterator[Unit]:
    yield unit
    for inner in unit.inner:
        yield from _walk(inner)
