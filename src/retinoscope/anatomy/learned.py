"""Which parameters belong to which unit, and which of them states are multiplied with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import fx, nn

from retinoscope.anatomy.cost import constants_behind
from retinoscope.anatomy.cut import Piece
from retinoscope.anatomy.flow import Flow, arguments, operation

_MAPS = {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "einsum"}
_ADDED = {"addmm": "self", "baddbmm": "self", "addmv": "self"}
"""Operand that is added rather than multiplied, where it is not called bias."""


def parameters_of_units(flow: Flow, pieces: Mapping[str, Piece]) -> dict[str, list[nn.Parameter]]:
    """The parameters of each unit by its name, each where it is used first."""
    counted: set[int] = set()
    found: dict[str, list[nn.Parameter]] = {}
    for name, piece in pieces.items():
        used = constants_behind(flow, piece.nodes) & flow.source.parameters
        # Sets of nodes have no order of their own.
        values = [flow.source.constants[n] for n in flow.source.graph.nodes if n in used]
        found[name] = [value for value in values if id(value) not in counted]
        counted |= {id(value) for value in values}
    return found


def multiplied_parameters(flow: Flow) -> list[nn.Parameter]:
    """The parameters of linear maps: what states are multiplied with over channels or positions.

    Norms, biases, layer scales, class tokens and tables of positions, which are added to states or
    scale them, are not among them, whatever they are called.
    """
    used: set[fx.Node] = set()
    for node in flow.dependent:
        if node.op == "call_function" and _is_map(name := operation(node)):
            named = arguments(node)
            skipped = {id(named.get("bias")), id(named.get(_ADDED.get(name, "")))}
            operands = [n for n in node.all_input_nodes if id(n) not in skipped]
            used |= _behind(flow, [n for n in operands if n not in flow.dependent])
    kept = used & flow.source.parameters
    return [flow.source.constants[n] for n in flow.source.graph.nodes if n in kept]


def _is_map(name: str) -> bool:
    return (
        name in _MAPS
        or name.startswith(("conv1d", "conv2d", "conv3d", "conv_transpose"))
        or (name == "convolution")
    )


def _behind(flow: Flow, operands: Iterable[fx.Node]) -> set[fx.Node]:
    listed = list(operands)
    return set(listed) | constants_behind(flow, listed)
