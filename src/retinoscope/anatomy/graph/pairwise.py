"""Splits einsums into products of at most two operands.

``einsum("bhnm,bhme,hed->bnd", weights, values, w)`` mixes values and projects them at once. As two
products, the first is an attention and the second a linear map, and both can be analysed
separately. The result is that of the model up to rounding, because the order of the products may
differ.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, fx

from retinoscope.anatomy.reading.einsum import parse_einsum

_EINSUM = torch.ops.aten.einsum.default
_SOFTMAX = {torch.ops.aten.softmax.int, torch.ops.aten._softmax.default}
_PRODUCTS = {
    _EINSUM, torch.ops.aten.matmul.default, torch.ops.aten.bmm.default, torch.ops.aten.mm.default,
    torch.ops.aten.linear.default,
}  # fmt: skip


@dataclass(frozen=True)
class _Operand:
    node: fx.Node
    letters: str

    def sizes(self) -> dict[str, Any]:
        return dict(zip(self.letters, self.node.meta["val"].shape, strict=True))


def split_einsums(graph: fx.Graph, inputs: Collection[str]) -> None:
    """Replace einsums of three or more operands by products of two.

    Args:
        graph: Changed in place.
        inputs: Names of the placeholders that are not constants: the image.
    """
    wide = [node for node in graph.nodes if node.target is _EINSUM and len(node.args[1]) > 2]
    made = _made_from(graph, inputs) if wide else set()
    for node in wide:
        _split(graph, node, made)


def _split(graph: fx.Graph, node: fx.Node, made: set[fx.Node]) -> None:
    nodes = cast(Sequence[fx.Node], node.args[1])
    if not all(isinstance(n.meta.get("val"), Tensor) for n in (node, *nodes)):
        return
    terms, out = parse_einsum(cast(str, node.args[0]), [n.meta["val"].ndim for n in nodes])
    operands = [_Operand(n, term) for n, term in zip(nodes, terms, strict=True)]
    while len(operands) > 2:
        pair = _mixing(operands, made, out) or _smallest(operands, out)
        product = _product(graph, node, operands, pair, out)
        rest = [one for one in operands if one not in pair]
        operands = [product, *rest]
    node.args = (_equation(operands, out), [one.node for one in operands])
    node.kwargs = {}  # the contraction order of the original einsum


def _mixing(
    operands: Sequence[_Operand], made: set[fx.Node], out: str
) -> tuple[_Operand, _Operand] | None:
    """Softmax weights and the values that they mix; None if there is no such pair."""
    for one in operands:
        if _is_soft(one.node):
            for other in operands:
                summed = (set(one.letters) & set(other.letters)) - set(out)
                if other is not one and other.node in made and summed:
                    first, second = sorted((one, other), key=operands.index)
                    return first, second
    return None


def _smallest(operands: Sequence[_Operand], out: str) -> tuple[_Operand, _Operand]:
    """The pair with the smallest product; the first of several."""

    def numbers(pair: tuple[_Operand, _Operand]) -> int:
        sizes = pair[0].sizes() | pair[1].sizes()
        return prod(_hint(sizes[letter]) for letter in _kept(operands, pair, out))

    return min(combinations(operands, 2), key=numbers)


def _kept(operands: Sequence[_Operand], pair: Sequence[_Operand], out: str) -> str:
    """The letters of a product that are still needed, in the order of the pair."""
    read = out + "".join(one.letters for one in operands if one not in pair)
    both = dict.fromkeys(pair[0].letters + pair[1].letters)
    return "".join(letter for letter in both if letter in read)


def _product(
    graph: fx.Graph,
    node: fx.Node,
    operands: Sequence[_Operand],
    pair: tuple[_Operand, _Operand],
    out: str,
) -> _Operand:
    letters = _kept(operands, pair, out)
    with graph.inserting_before(node):
        made = graph.call_function(_EINSUM, (_equation(pair, letters), [one.node for one in pair]))
    sizes = [one.sizes() for one in pair]
    # A dimension of size 1 is broadcast along the other's.
    shape = [next((s[x] for s in sizes if x in s and not _is_one(s[x])), 1) for x in letters]
    made.meta = dict(node.meta) | {"val": node.meta["val"].new_empty(shape)}
    return _Operand(made, letters)


def _equation(operands: Sequence[_Operand], out: str) -> str:
    return f"{','.join(one.letters for one in operands)}->{out}"


def _is_soft(node: fx.Node) -> bool:
    """Whether it comes from a softmax, without a product in between."""
    waiting, seen = [node], set()
    while waiting:
        current = waiting.pop()
        if current in seen or current.target in _PRODUCTS:
            continue
        if current.target in _SOFTMAX:
            return True
        seen.add(current)
        waiting += current.all_input_nodes
    return False


def _made_from(graph: fx.Graph, inputs: Collection[str]) -> set[fx.Node]:
    """The nodes that depend on the image."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.name in inputs or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _hint(size: Any) -> int:
    """A size as a number; the batch has the size of the export."""
    return size if isinstance(size, int) else int(size.node.hint or 2)
