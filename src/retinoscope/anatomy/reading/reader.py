"""Propagates the meaning of dimensions through a graph, one operation at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tag, fx

from retinoscope.anatomy.axes import (
    POSITIONS,
    Axes,
    Dimension,
    is_soft,
    position,
    roles_of,
    single,
    size_of,
    soften,
    unknown,
)
from retinoscope.anatomy.graph.flow import BATCH, Flow, arguments, chosen, is_tensor, operation
from retinoscope.anatomy.reading.facts import WORK, Fact

Given = Mapping[str, Any]
"""The arguments of a call by name."""


@dataclass(frozen=True)
class Meaning:
    """A tensor's dimensions, and whether it is a product of two tensors computed from the image."""

    axes: Axes
    product: frozenset[str] | None = None
    """Roles of the axis along which the two were multiplied; None if it is not a product."""


class Reader:
    """Propagates meanings through the graph, with one rule per family of operations."""

    def __init__(self, flow: Flow, rules: Mapping[str, Rule]) -> None:
        self.flow = flow
        self.rules = rules
        self.meaning: dict[fx.Node, Meaning] = {}
        self.tuples: dict[fx.Node, list[Meaning]] = {}
        self.facts: dict[fx.Node, set[Fact]] = {}

    def read(self, node: fx.Node) -> None:
        """Determine the node's meaning and facts, and check that they match its shape."""
        self.facts[node] = set()
        if node is self.flow.source.image:
            n, c, y, x = self.flow.shape(node)
            axes = (single("n", n), single("c", c), position("y", y), position("x", x))
            self.meaning[node] = Meaning(axes)
            return
        if (entry := chosen(node)) is not None:
            self._take_entry(node, entry)
        else:
            found = self._apply(node)
            if isinstance(found, list):
                self.tuples[node] = found
                found = found[0]
            inherited = [self.meaning[n].product for n in self.flow.inputs(node)]
            keeps = not self.facts[node] & (WORK | {Fact.NORM})
            product = next((p for p in inherited if p is not None), None) if keeps else None
            self.meaning[node] = found if found.product else replace(found, product=product)
        self._fit(node)

    def _apply(self, node: fx.Node) -> Meaning | list[Meaning]:
        rule = self.rules.get(operation(node))
        if rule is None and Tag.pointwise in getattr(node.target, "tags", ()):
            rule = self.rules["relu"]  # all non-linearities are treated alike
        return rule(self, node, arguments(node)) if rule else self.unknown(node)

    def axes(self, node: Any) -> Axes:
        """The dimensions of an operand; those of a constant are unknown."""
        if node in self.meaning:
            return self.meaning[node].axes
        return tuple(unknown(size) for size in self.flow.shape(node))

    def _fit(self, node: fx.Node) -> None:
        if not is_tensor(node):
            return  # a tuple: each entry is checked when it is selected
        shape = self.flow.shape(node)
        axes = self.meaning[node].axes
        if len(axes) != len(shape):
            axes = tuple(unknown(size) for size in shape)
        fitted = tuple(map(self._fitted, axes, shape))
        self.meaning[node] = replace(self.meaning[node], axes=fitted)

    def _fitted(self, dimension: Dimension, size: int) -> Dimension:
        if size_of(dimension) != size:
            dimension = unknown(size)
        if size == BATCH and roles_of(dimension) == {"?"}:
            return single("n", size)  # nothing else is as large
        return dimension

    def _take_entry(self, node: fx.Node, entry: int) -> None:
        whole = cast(fx.Node, node.args[0])
        entries = self.tuples.get(whole)
        self.meaning[node] = (
            entries[min(entry, len(entries) - 1)] if entries else self.meaning[whole]
        )
        self.facts[node].add(Fact.LAYOUT)

    def broadcast(self, node: fx.Node, operands: Sequence[fx.Node]) -> Axes:
        """The dimensions of a pointwise result, each from the operand with the most information."""
        shape = self.flow.shape(node)
        known = [self.axes(operand) for operand in operands if self.flow.shape(operand)]
        return tuple(
            agree([axes[d - len(shape)] for axes in known if len(axes) >= len(shape) - d], size)
            for d, size in enumerate(shape)
        )

    def unknown(self, node: fx.Node) -> Meaning:
        """An operation without a rule: only the sizes of its dimensions are known."""
        self.facts[node].add(Fact.OPAQUE)
        return Meaning(tuple(unknown(size) for size in self.flow.shape(node)))


Rule = Callable[[Reader, fx.Node, Given], Meaning | list[Meaning]]


def agree(candidates: Sequence[Dimension], size: int) -> Dimension:
    """The most informative of several descriptions of one dimension."""
    fitting = [d for d in candidates if size_of(d) == size]
    if not fitting:
        return unknown(size)

    def telling(dimension: Dimension) -> int:
        roles = roles_of(dimension)
        return len(roles & POSITIONS) * 4 + len(roles & {"c", "n"}) * 2 - len(roles & {"?"})

    best = max(fitting, key=telling)
    return soften(best) if any(map(is_soft, fitting)) else best


def resized(dimension: Dimension, size: int) -> Dimension:
    """The dimension itself, or one of the same role and another size if it had a single role."""
    if size_of(dimension) == size:
        return dimension
    roles = roles_of(dimension)
    if len(roles) == 1 and (role := next(iter(roles))) in "yxc":
        return position(role, size) if role in "yx" else single(role, size)
    return unknown(size)


def as_list(value: Any) -> list[int]:
    """An optional number or numbers as a list."""
    return [] if value is None else [value] if isinstance(value, int) else list(value)
