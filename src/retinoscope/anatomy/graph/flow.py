"""The data flow of a graph: which nodes depend on the image, and through which operands.

With a dynamic batch, nodes that contain sizes link the image to every later ``view``. They carry no
data; neither does the operand of ``reshape_as`` that only provides its shape. Unless such edges are
ignored, a ViT is a single unit.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from retinoscope.anatomy.graph.export import Graph

BATCH = 10007
"""The number of images when sizes are compared: a prime larger than any other size."""

_LENDS_SHAPE = {  # operation → index of the operand whose values are not read
    "reshape_as": 1, "view_as": 1, "expand_as": 1, "type_as": 1, "resize_as": 1,
    "zeros_like": 0, "ones_like": 0, "full_like": 0, "empty_like": 0, "rand_like": 0,
    "new_zeros": 0, "new_ones": 0, "new_full": 0, "new_empty": 0,
}  # fmt: skip


def operation(node: fx.Node) -> str:
    """The name of an ATen operation without its overload: ``conv2d``, ``view``, ``getitem``."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.split("::")[-1]
    return getattr(node.target, "__name__", str(node.target))


def arguments(node: fx.Node) -> Mapping[str, Any]:
    """The arguments of a call, by their names in the operation's schema."""
    if not isinstance(node.target, OpOverload):
        return dict(enumerate(node.args)) | dict(node.kwargs)  # type: ignore[return-value]
    schema = node.target._schema.arguments
    named = {a.name: a.default_value for a in schema if a.has_default_value()}
    named |= {a.name: value for a, value in zip(schema, node.args, strict=False)}
    return named | node.kwargs


def computed(node: fx.Node, operands: Mapping[fx.Node, Any]) -> Any:
    """The value of a call for these values of the nodes that it reads."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), operands.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]


@dataclass
class Flow:
    """A graph viewed as a flow of data from the image to the logits."""

    source: Graph
    shapes: dict[tuple[fx.Node, int], tuple[int, ...]] = field(default_factory=dict)

    def data_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The operands whose values (not only sizes) the node reads, without duplicates."""
        lender = _LENDS_SHAPE.get(operation(node)) if node.op == "call_function" else None
        skipped = node.args[lender] if lender is not None and lender < len(node.args) else None
        return [n for n in node.all_input_nodes if n is not skipped and not is_size(n)]

    @cached_property
    def dependent(self) -> dict[fx.Node, None]:
        """The nodes whose values depend on the image, in the order of execution."""
        found: dict[fx.Node, None] = {self.source.image: None}
        for node in self.source.graph.nodes:
            if (
                node.op != "output"
                and not is_size(node)
                and any(n in found for n in self.data_inputs(node))
            ):
                found[node] = None
        return found

    @cached_property
    def learned(self) -> set[fx.Node]:
        """The nodes that do not depend on the image but on a parameter."""
        found: set[fx.Node] = set(self.source.parameters)
        for node in self.source.graph.nodes:
            if node not in self.dependent and any(n in found for n in self.data_inputs(node)):
                found.add(node)
        return found

    def inputs(self, node: fx.Node) -> list[fx.Node]:
        """The operands that depend on the image."""
        return [n for n in self.data_inputs(node) if n in self.dependent]

    def users(self, node: fx.Node) -> list[fx.Node]:
        """The operations that read this node's values."""
        return [u for u in node.users if u in self.dependent and node in self.data_inputs(u)]

    def shape(self, node: fx.Node, batch: int = BATCH) -> tuple[int, ...]:
        """The node's shape for ``batch`` images; () if it is not a tensor."""
        key = node, batch
        if key not in self.shapes:
            value = node.meta.get("val")
            sizes = value.shape if isinstance(value, Tensor) else ()
            self.shapes[key] = tuple(concrete(size, batch) for size in sizes)
        return self.shapes[key]


def is_size(node: fx.Node) -> bool:
    """Whether the node is a size, not data."""
    return isinstance(node.meta.get("val"), int | torch.SymInt | torch.SymBool | torch.SymFloat)


def is_tensor(node: fx.Node) -> bool:
    """Whether the node is one tensor, not a tuple of tensors."""
    return isinstance(node.meta.get("val"), Tensor)


def concrete(size: int | torch.SymInt, batch: int) -> int:
    """The value of a size for ``batch`` images."""
    if isinstance(size, int):
        return size
    expression: Any = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))


def chosen(node: fx.Node) -> int | None:
    """The entry of a tuple that the node selects, if it does."""
    return int(node.args[1]) if node.target is operator.getitem else None  # type: ignore[arg-type]


def ancestors(flow: Flow, node: fx.Node, stop: set[fx.Node]) -> Iterator[fx.Node]:
    """The nodes from which the node is computed, back to ``stop``, including itself."""
    waiting, seen = [node], set()
    while waiting:
        current = waiting.pop()
        if current in seen or current in stop:
            continue
        seen.add(current)
        yield current
        waiting += flow.inputs(current)
