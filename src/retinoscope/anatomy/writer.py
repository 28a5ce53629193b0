"""Converts parts of an exported graph into modules, and runs them as a chain."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from retinoscope.anatomy.graph.flow import Flow, is_size
from retinoscope.anatomy.units.cost import constants_behind
from retinoscope.anatomy.units.cut import Piece
from retinoscope.core.errors import NotExportable


class Chain(nn.Module):
    """Segments of a graph that are run one after the other."""

    def __init__(self, preamble: fx.GraphModule, segments: Iterable[nn.Module]) -> None:
        super().__init__()
        self.preamble = preamble
        self.segments = nn.ModuleList(segments)

    def forward(self, batch: Tensor) -> Tensor:
        """The logits."""
        return self.finish(batch, 0, len(batch), self.constants(len(batch)))

    def constants(self, images: int) -> Sequence[Tensor]:
        """Values that several segments need and that do not depend on the image, computed once."""
        return self.preamble(images)

    def walk(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield the raw state after each segment."""
        images = len(batch)
        shared = self.constants(images)
        for segment in self.segments:
            batch = segment(batch, images, *shared)
            yield batch

    def walk_all(self, batch: Tensor) -> Iterator[Sequence[Tensor]]:
        """For segments with several outputs: yield all of them, the state itself first."""
        images = len(batch)
        shared = self.constants(images)
        outputs: Sequence[Tensor] = (batch,)
        for segment in self.segments:
            outputs = segment(outputs[0], images, *shared)
            yield outputs

    def resume(self, index: int, state: Tensor, images: int) -> Tensor:
        """The logits that follow from the state after the segment at ``index``."""
        return self.finish(state, index + 1, images, self.constants(images))

    def finish(self, state: Tensor, start: int, images: int, shared: Sequence[Tensor]) -> Tensor:
        """Run the segments from ``start`` on."""
        for segment in self.segments[start:]:
            state = segment(state, images, *shared)
        return state


class Writer:
    """Converts parts of the exported graph into modules."""

    def __init__(self, flow: Flow, pieces: Sequence[Piece]) -> None:
        self.source = flow.source
        used = Counter(
            node
            for piece in pieces
            for node in constants_behind(flow, piece.nodes)
            if node not in self.source.constants and not is_size(node)
        )
        self.shared = [node for node in self.source.graph.nodes if used[node] > 1]

    @cached_property
    def preamble(self) -> fx.GraphModule:
        """Computes the constants that several segments share, from the number of images."""
        return _Sheet(self, ()).module(self.shared)

    def segment(
        self,
        piece: Piece,
        exits: Sequence[fx.Node] = (),
        swapped: Mapping[fx.Node, fx.Node] | None = None,
        given: Sequence[fx.Node] = (),
    ) -> fx.GraphModule:
        """The piece as a function of its entry, the number of images and the shared constants.

        Args:
            piece: The part of the graph.
            exits: The nodes whose values are returned. Default: the state after the piece, alone.
            swapped: Nodes whose values are replaced by those of other, earlier nodes.
            given: Further nodes whose values are passed, after the entry, instead of computed.
        """
        sheet = _Sheet(self, (piece.entry, *given), swapped)
        return sheet.module(list(exits) if exits else piece.exit)

    def part(self, given: Sequence[fx.Node], exit: fx.Node) -> fx.GraphModule:
        """The operations up to ``exit``, as a function of ``given`` and the number of images."""
        return _Sheet(self, given, shared=False).module(exit)


class _Sheet:
    """One graph being written."""

    def __init__(
        self,
        writer: Writer,
        given: Sequence[fx.Node],
        swapped: Mapping[fx.Node, fx.Node] | None = None,
        shared: bool = True,
    ) -> None:
        self.writer = writer
        self.swapped = swapped or {}
        self.graph = fx.Graph()
        self.tensors: dict[str, Any] = {}
        self.written: dict[fx.Node, Any] = {
            node: self.graph.placeholder(f"given_{index}") for index, node in enumerate(given)
        }
        self.images = self.graph.placeholder("images")
        if given and shared:
            for index, node in enumerate(writer.shared):
                self.written[node] = self.graph.placeholder(f"shared_{index}")

    def module(self, outputs: fx.Node | Sequence[fx.Node]) -> fx.GraphModule:
        """The finished module, which returns ``outputs``."""
        several = not isinstance(outputs, fx.Node)
        wanted = list(outputs) if several else [outputs]
        for node in self._needed(wanted):
            self._write(node)
        found = [self.written[self._swap(node)] for node in wanted]
        self.graph.output(tuple(found) if several else found[0])
        return fx.GraphModule(self.tensors, self.graph)

    def _swap(self, node: fx.Node) -> fx.Node:
        while node in self.swapped:  # what replaces it may be replaced too
            node = self.swapped[node]
        return node

    def _needed(self, wanted: Sequence[fx.Node]) -> list[fx.Node]:
        """Every node to write, in the order of execution."""
        waiting, found = [self._swap(node) for node in wanted], set()
        while waiting:
            node = waiting.pop()
            if node in found or node in self.written:
                continue
            found.add(node)
            if not is_size(node) or self._slope(node) is None:
                waiting += [self._swap(n) for n in node.all_input_nodes]
        return [node for node in self.writer.source.graph.nodes if node in found]

    def _write(self, node: fx.Node) -> None:
        if node in self.writer.source.constants:
            value = self.writer.source.constants[node]
            name = str(node.target).replace(".", "_")
            self.tensors[name] = value
            self.written[node] = self.graph.get_attr(name)
        elif is_size(node) and (slope := self._slope(node)) is not None:
            value = node.meta["val"]
            if isinstance(value, int):
                self.written[node] = value
            elif slope == 1:
                self.written[node] = self.images
            else:
                self.written[node] = self.graph.call_function(operator.mul, (self.images, slope))
        elif node.op == "placeholder":
            raise NotExportable(
                f"The graph reads {node.name!r} again after a state that should determine "
                "everything that follows. This is a bug in retinoscope: please report it."
            )
        else:
            self.written[node] = self.graph.node_copy(node, lambda n: self.written[self._swap(n)])

    def _slope(self, node: fx.Node) -> int | None:
        """How a size grows with the number of images, if it is proportional to it."""
        value = node.meta["val"]
        if isinstance(value, int):
            return 0
        if not isinstance(value, torch.SymInt):
            return None
        expression: Any = value.node.expr
        symbols = list(expression.free_symbols)
        slope = expression.coeff(symbols[0], 1) if len(symbols) == 1 else None
        return (
            int(slope)
            if slope is not None and expression == slope * symbols[0] and slope.is_Integer
            else None
        )
