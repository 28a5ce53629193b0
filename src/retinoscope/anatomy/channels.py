"""Tracks channels through operations that only move entries, by running them on marks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from retinoscope.anatomy.attentions import Attention
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.flow import Flow, computed, concrete, is_size, operation

_CASTS = {"to", "_to_copy", "float", "type_as"}


def origin(dissection: Dissection, node: fx.Node) -> fx.Node:
    """The node that computed the entries of a tensor, before they were moved."""
    while dissection.moves(node):
        (node,) = dissection.flow.inputs(node)
    return node


class Channels:
    """The last axis of a tensor, tracked through operations that only move it or mix positions.

    Each channel has a mark, the same at all positions. If an entry of a later tensor has the same
    mark, it is that channel; if marks were mixed, it is none.
    """

    def __init__(self, dissection: Dissection, source: fx.Node) -> None:
        self.dissection = dissection
        self.flow: Flow = dissection.flow
        self.source = source
        self._images = self.flow.source.batch or 2
        shape = self._shape(source)
        generator = torch.Generator().manual_seed(0)
        self._marks = torch.rand(shape[-1], generator=generator, dtype=torch.float64)
        self._known: dict[fx.Node, Any] = {source: self._marks.expand(shape)}

    def at(self, node: fx.Node) -> Tensor:
        """The source channel of each entry of another tensor; −1 if there is none."""
        marks, channels = self._marks.sort()
        here = self._value(node).contiguous()
        nearest = torch.bucketize(here, (marks[1:] + marks[:-1]) / 2)
        # Means over positions have rounding errors; the marks are further apart than that.
        same = (marks[nearest] - here).abs() < 1e-12
        return torch.where(same, channels[nearest], -1)

    def through(self, attention: Attention) -> None:
        """Track the values through an attention with equal weights, which keeps the marks."""
        values, shape = self._value(attention.values), self._shape(attention.node)
        if attention.weights is None:
            mean = values.mean(-2, keepdim=True)
            fits = mean.shape[:-2] == shape[:-2]
            mixed = mean.expand(shape) if fits else torch.full(shape, torch.nan)
        else:
            weights = torch.ones(self._shape(attention.weights), dtype=torch.float64)
            given = {attention.weights: weights, attention.values: values}
            ones = given | {attention.values: torch.ones_like(values)}
            mixed = computed(attention.node, given) / computed(attention.node, ones)
        self._known[attention.node] = mixed

    def moved(self, start: fx.Node, values: Tensor, end: fx.Node) -> Tensor:
        """Values given at one tensor, at a later one that operations only move them to."""
        other = Channels(self.dissection, start)
        other._known = {start: values}
        return other._value(end)

    def readers(self) -> list[tuple[fx.Node, fx.Node]]:
        """The nodes that read entries of the source and do not only move them, with the tensor."""
        found, waiting = [], [self.source]
        while waiting:
            node = waiting.pop()
            for user in self.flow.users(node):
                if self.dissection.moves(user):
                    waiting.append(user)
                else:
                    found.append((user, node))
        return found

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return self.flow.shape(node, self._images)

    def _value(self, node: fx.Node) -> Any:
        """The marks at a node; other operands of moving operations are sizes and constants."""
        if node in self._known:
            return self._known[node]
        if is_size(node):
            return concrete(node.meta["val"], self._images)
        if node in self.flow.source.constants:
            return self.flow.source.constants[node].cpu()
        if operation(node) in _CASTS:
            return self._value(self.flow.inputs(node)[0])  # marks keep their own precision
        operands = {n: self._value(n) for n in node.all_input_nodes}
        self._known[node] = computed(node, operands)
        return self._known[node]
