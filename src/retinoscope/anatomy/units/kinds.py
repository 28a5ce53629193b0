"""Determines the kind of a unit from its facts, and the operations that decided it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import fx

from retinoscope.anatomy.reading.facts import Fact
from retinoscope.core.unit import Kind

_ORDER = (
    (Fact.ATTENTION, Kind.ATTENTION),
    (Fact.CHANNEL_ATTENTION, Kind.CHANNEL_ATTENTION),
    (Fact.TOKEN_MIXING, Kind.TOKEN_MLP),
    (Fact.CONV, Kind.CONV),
)
_LEARNED = {Fact.CONV, Fact.LINEAR, Fact.TOKEN_MIXING}
_DECIDE = {
    Kind.ATTENTION: {Fact.ATTENTION},
    Kind.CHANNEL_ATTENTION: {Fact.CHANNEL_ATTENTION},
    Kind.TOKEN_MLP: {Fact.TOKEN_MIXING, Fact.LINEAR},
    Kind.CONV: _LEARNED,
    Kind.MLP: {Fact.LINEAR},
    Kind.POOL: {Fact.POOL},
    Kind.STEM: _LEARNED,
    Kind.HEAD: _LEARNED,
}


def kind_of(facts: set[Fact]) -> Kind:
    """The kind by the first rule that matches; ``other`` if none does.

    Example:
        >>> kind_of({Fact.LINEAR, Fact.NONLINEAR, Fact.CONV})
        <Kind.CONV: 'conv'>
    """
    for fact, kind in _ORDER:
        if fact in facts:
            return kind
    if Fact.OPAQUE in facts:
        return Kind.OTHER
    if {Fact.LINEAR, Fact.NONLINEAR} <= facts:
        return Kind.MLP
    return Kind.POOL if Fact.POOL in facts else Kind.OTHER


def deciding(
    kind: Kind, nodes: Iterable[fx.Node], facts: Mapping[fx.Node, set[Fact]]
) -> list[fx.Node]:
    """The operations that determine the kind of the unit; all of them if none stands out."""
    nodes = list(nodes)
    wanted = _DECIDE.get(kind, set())
    return [node for node in nodes if facts[node] & wanted] or nodes
