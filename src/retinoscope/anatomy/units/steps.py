"""The steps of a network: the operations between two consecutive cut vertices.

A cut vertex is a node that every path from the image to the logits passes through: a dominator of
the output. Most steps are a single pointwise, norm or layout operation. A step with several paths
is a block; if its entry is also a term of the sum at its exit, it is residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
from torch import fx

from retinoscope.anatomy.graph.flow import Flow, ancestors, arguments, is_tensor, operation
from retinoscope.anatomy.reading.facts import WORK, Fact

_SCALINGS = {"mul", "div", "neg", "multiply", "divide"}


@dataclass(frozen=True)
class Skip:
    """The sum of a residual step: ``exit`` = ``operand`` (the entry, unchanged) + branches."""

    operand: fx.Node
    branches: tuple[fx.Node, ...]


@dataclass
class Step:
    """The operations between two consecutive cut vertices."""

    entry: fx.Node
    exit: fx.Node
    nodes: list[fx.Node]
    """In the order of execution, without the entry, with the exit."""
    facts: set[Fact]
    skip: Skip | None = None
    gate: bool = False
    """Whether it only weights its entry: the entry times a smaller tensor computed from it."""
    attends: bool = False
    """Whether its exit is the product of attention, which a projection should follow."""

    @property
    def block(self) -> bool:
        """Whether it has several paths and does work along them."""
        return len(self.nodes) > 1 and not self.gate and bool(self.facts & WORK)

    @property
    def work(self) -> bool:
        """Whether it makes a unit of its own instead of belonging to an adjacent one."""
        return bool(self.facts & WORK) and not self.gate

    @property
    def opens(self) -> bool:
        """Whether it belongs to the next unit: padding, or the mean at the start of a head."""
        return len(self.nodes) == 1 and bool(self.facts & {Fact.REDUCE, Fact.PAD})

    @property
    def activation(self) -> bool:
        """Whether it is pointwise, so that it belongs to the sum before it."""
        return not self.facts & (WORK | {Fact.NORM, Fact.LAYOUT, Fact.REDUCE})


class Stepper:
    """Finds the steps between two nodes of a flow."""

    def __init__(self, flow: Flow, facts: dict[fx.Node, set[Fact]]) -> None:
        self.flow = flow
        self.facts = facts
        self.order = {node: index for index, node in enumerate(flow.dependent)}

    def steps(self, entry: fx.Node, exit: fx.Node) -> Iterator[Step]:
        """The steps between consecutive cut vertices of the paths from ``entry`` to ``exit``."""
        between = self._between(entry, exit)
        flow = nx.DiGraph(
            (n, node) for node in between for n in self.flow.inputs(node) if n in between
        )
        if entry is exit or exit not in flow:
            return
        dominators = nx.immediate_dominators(flow, entry)
        chain, node = [exit], exit
        while node is not entry:
            node = dominators[node]
            if is_tensor(node):  # a tuple is not a state
                chain.append(node)
        for start, end in pairwise(reversed(chain)):
            yield self._step(start, end, between)

    def _between(self, entry: fx.Node, exit: fx.Node) -> set[fx.Node]:
        backward = set(ancestors(self.flow, exit, {entry})) | {entry}
        reached = {entry}
        for node in sorted(backward, key=self.order.__getitem__):
            if any(n in reached for n in self.flow.inputs(node)):
                reached.add(node)
        return reached

    def _step(self, entry: fx.Node, exit: fx.Node, between: set[fx.Node]) -> Step:
        nodes = [n for n in ancestors(self.flow, exit, {entry}) if n in between]
        nodes.sort(key=self.order.__getitem__)
        facts = set().union(*(self.facts[node] for node in nodes))
        attends = bool(self.facts[exit] & {Fact.ATTENTION, Fact.CHANNEL_ATTENTION})
        step = Step(entry, exit, nodes, facts, attends=attends)
        if len(nodes) > 1:
            step.skip = self._skip(step)
            step.gate = step.skip is None and self._is_gate(step)
        return step

    def _skip(self, step: Step) -> Skip | None:
        """The sum at the exit, if the entry is one of its terms."""
        terms = list(self._terms(step.exit, set(step.nodes)))
        whole = [term for term, as_it_is in terms if as_it_is and self._leads_straight(step, term)]
        if len(terms) < 2 or len(whole) != 1 or self._entries(whole[0]) != self._entries(step.exit):
            return None
        return Skip(whole[0], tuple(term for term, _ in terms if term is not whole[0]))

    def _terms(self, node: fx.Node, inside: set[fx.Node]) -> Iterator[tuple[fx.Node, bool]]:
        """The terms of a sum, including those of nested sums that are not used elsewhere.

        Each term comes with a flag: whether it is added unchanged, not subtracted or multiplied
        first.
        """
        for operand, as_it_is in self._summands(node):
            nested = operand in inside and as_it_is and operation(operand) == "add"
            if nested and self._summands(operand) and len(self.flow.users(operand)) == 1:
                yield from self._terms(operand, inside)
            else:
                yield operand, as_it_is

    def _summands(self, node: fx.Node) -> list[tuple[fx.Node, bool]]:
        name, made = operation(node), self.flow.inputs(node)
        if name not in {"add", "sub", "addcmul"} or len(made) < 2:
            return []
        alike = name == "add" and arguments(node).get("alpha", 1) == 1
        return [(operand, alike or operand is node.args[0]) for operand in made]

    def _leads_straight(self, step: Step, node: fx.Node) -> bool:
        """Whether the node is the entry, at most scaled by a constant or in another layout."""
        size = self._entries(step.entry)
        while node is not step.entry:
            made = self.flow.inputs(node)
            scaled = operation(node) in _SCALINGS or self.facts[node] == {Fact.LAYOUT}
            if len(made) != 1 or not scaled or self._entries(made[0]) != size:
                return False
            (node,) = made
        return True

    def _entries(self, node: fx.Node) -> int:
        return math.prod(self.flow.shape(node))

    def _is_gate(self, step: Step) -> bool:
        """Whether the exit is the entry times weights that lack positions or channels."""
        if operation(step.exit) not in {"mul", "multiply"}:
            return False
        made = self.flow.inputs(step.exit)
        straight = [n for n in made if self._leads_straight_through_pointwise(step, n)]
        others = [n for n in made if n not in straight]
        full = self._entries(step.entry)
        return len(straight) == 1 and all(self._entries(n) < full for n in others)

    def _leads_straight_through_pointwise(self, step: Step, node: fx.Node) -> bool:
        while node is not step.entry:
            made = self.flow.inputs(node)
            if len(made) != 1 or self.facts[node] & (WORK | {Fact.REDUCE}):
                return False
            (node,) = made
        return True
