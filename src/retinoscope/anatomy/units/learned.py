"""Assigns parameters to units, and finds those by which states are multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import fx, nn

from retinoscope.anatomy.graph.flow import Flow, arguments, operation
from retinoscope.anatomy.units.cost import constants_behind
from retinoscope.anatomy.units.cut import Piece

_PRODUCTS = {"matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "einsum",
             "scaled_dot_product_attention"}  # fmt: skip
_NOT_MULTIPLIED = {"addmm": "self", "baddbmm": "self", "addmv": "self",
                   "scaled_dot_product_attention": "attn_mask"}  # fmt: skip
"""Operands that are added."""
_CHOSEN = {"index", "index_select", "gather", "embedding", "take_along_dim"}
"""The result of a lookup is a table, usually of positions, and not a linear map."""
_SWAPPED = {"t", "transpose", "permute", "swapaxes", "movedim", "numpy_T"}


def parameters_of_units(flow: Flow, pieces: Mapping[str, Piece]) -> dict[str, list[nn.Parameter]]:
    """The parameters of each unit by name; a parameter belongs to the first unit that uses it."""
    counted: set[int] = set()
    found: dict[str, list[nn.Parameter]] = {}
    for name, piece in pieces.items():
        used = constants_behind(flow, piece.nodes) & flow.source.parameters
        # Sets of nodes are unordered.
        values = [flow.source.constants[n] for n in flow.source.graph.nodes if n in used]
        found[name] = [value for value in values if id(value) not in counted]
        counted |= {id(value) for value in values}
    return found


def multiplied_parameters(flow: Flow) -> dict[nn.Parameter, int]:
    """The parameters of linear maps, each with its output axis.

    States are multiplied by them over channels or positions. Norms, biases, layer scales, class
    tokens and position tables, which are added to states, scale them or are looked up, are
    excluded, whatever their names.
    """
    found: dict[fx.Node, int] = {}
    for node in flow.dependent:
        if node.op == "call_function":
            waiting = _operands(flow, node)
            seen: set[fx.Node] = set()
            while waiting:
                operand, axis = waiting.pop()
                if operand in seen:
                    continue
                seen.add(operand)
                if operand in flow.source.parameters:
                    found.setdefault(operand, _valid(axis, operand))
                elif operand.op == "call_function" and operation(operand) not in _CHOSEN:
                    waiting += _before(operand, axis)
    inside = [n for n in flow.source.graph.nodes if n in found]
    return {flow.source.constants[n]: found[n] for n in reversed(inside)}


def _operands(flow: Flow, node: fx.Node) -> list[tuple[fx.Node, int | None]]:
    """The operands by which a linear map multiplies its state, each with its output axis."""
    if (weight := _weight(node)) is not None:
        return [weight] if weight[0] not in flow.dependent else []
    name, named = operation(node), arguments(node)
    if name not in _PRODUCTS:
        return []
    if name == "einsum":
        return _summed(flow, node)
    operands = [
        value
        for key, value in named.items()
        if isinstance(value, fx.Node) and key != _NOT_MULTIPLIED.get(name)
    ]
    # For a right operand the last axis remains, for a left one the second to last.
    ends = [-2] + [-1] * (len(operands) - 1)
    pairs = list(zip(operands, ends, strict=True))
    return [(value, axis) for value, axis in pairs if value not in flow.dependent]


def _weight(node: fx.Node) -> tuple[fx.Node, int | None] | None:
    """The weight of a linear layer or a convolution, and its output axis."""
    name = operation(node)
    if name != "linear" and not name.startswith("conv"):
        return None
    named = arguments(node)
    weight = named.get("weight")
    turned = name.startswith("conv_transpose") or bool(named.get("transposed"))
    return (weight, int(turned)) if isinstance(weight, fx.Node) else None


def _summed(flow: Flow, node: fx.Node) -> list[tuple[fx.Node, int | None]]:
    """In an einsum, the output axis is the letter that only the operand and the result have."""
    equation, operands = node.args[:2]
    left, _, outcome = str(equation).replace(" ", "").partition("->")
    letters = left.split(",")
    found: list[tuple[fx.Node, int | None]] = []
    for index, operand in enumerate(cast(Sequence[fx.Node], operands)):
        others = "".join(letters[:index] + letters[index + 1 :])
        own = [letters[index].find(x) for x in letters[index] if x in outcome and x not in others]
        if operand not in flow.dependent:
            found.append((operand, own[0] if own and "." not in letters[index] else None))
    return found


def _before(node: fx.Node, axis: int | None) -> list[tuple[fx.Node, int | None]]:
    """The tensors from which a constant is computed, with their output axis.

    If a linear map is applied to a constant, such as the query of a token, only the weight counts.
    """
    if (weight := _weight(node)) is not None:
        return [weight]
    name, named = operation(node), arguments(node)
    if name in _PRODUCTS:
        return []
    if name in _SWAPPED and axis is not None and (size := _dimensions(node)) is not None:
        if name in ("t", "numpy_T"):
            order = list(reversed(range(size)))
        elif name == "permute":
            order = [int(d) for d in cast(Sequence[int], named["dims"])]
        elif name == "transpose":
            order = list(range(size))
            one, two = (int(cast(int, named[k])) for k in ("dim0", "dim1"))
            order[one], order[two] = order[two], order[one]
        else:
            order = [None] * size
        axis = order[axis]
    same = [n for n in node.all_input_nodes if _dimensions(n) == _dimensions(node)]
    return [(n, axis if n in same else None) for n in node.all_input_nodes]


def _dimensions(node: fx.Node) -> int | None:
    return getattr(node.meta.get("val"), "ndim", None)


def _valid(axis: int | None, node: fx.Node) -> int:
    """The axis counted from the front; the first if unknown."""
    size = _dimensions(node) or 1
    return axis % size if axis is not None and -size <= axis < size else 0
