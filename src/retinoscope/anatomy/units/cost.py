"""The cost of a unit: floating-point operations and learned parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import fx

from retinoscope.anatomy.graph.flow import Flow, arguments, operation
from retinoscope.anatomy.reading.einsum import parse_einsum


def flops(flow: Flow, node: fx.Node) -> int:
    """FLOPs per image; a multiply-add counts as two. Pointwise operations are not counted."""
    name, given = operation(node), arguments(node)

    def shape(operand: fx.Node) -> tuple[int, ...]:
        return flow.shape(operand, batch=1)

    size = math.prod(shape(node))
    if name in {"linear", "conv1d", "conv2d", "conv3d", "convolution"}:
        if name == "convolution" and given["transposed"]:
            return 2 * math.prod(shape(given["input"])) * math.prod(shape(given["weight"])[1:])
        return 2 * size * math.prod(shape(given["weight"])[1:])
    if name.startswith("conv_transpose"):
        return 2 * math.prod(shape(given["input"])) * math.prod(shape(given["weight"])[1:])
    if name in {"matmul", "mm", "bmm", "mv", "addmm", "baddbmm"}:
        left = [operand for operand in node.args if isinstance(operand, fx.Node)][-2]
        return 2 * size * shape(left)[-1]
    if name == "einsum":
        shapes = [shape(tensor) for tensor in given["tensors"]]
        return _einsum_flops(given["equation"], shapes) if len(shapes) == 2 else 0
    if name == "scaled_dot_product_attention":
        *_, keys, width = shape(given["key"])
        queries = math.prod(shape(given["query"])[:-1])
        return 2 * queries * keys * (width + shape(given["value"])[-1])
    return 0


def _einsum_flops(equation: str, shapes: list[tuple[int, ...]]) -> int:
    terms, _ = parse_einsum(equation, [len(shape) for shape in shapes])
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return 2 * math.prod(sizes.values())


def constants_behind(flow: Flow, nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes that ``nodes`` are computed from and that do not depend on the image."""
    waiting = [n for node in nodes for n in node.all_input_nodes]
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in found or node in flow.dependent:
            continue
        found.add(node)
        waiting += node.all_input_nodes
    return found


def parameters(flow: Flow, nodes: Iterable[fx.Node], counted: set[int]) -> int:
    """Number of learned parameters of ``nodes`` that are not yet in ``counted``; adds them."""
    total = 0
    for node in constants_behind(flow, nodes) & flow.source.parameters:
        value = flow.source.constants[node]
        if id(value) not in counted:
            counted.add(id(value))
            total += value.numel()
    return total
