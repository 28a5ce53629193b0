"""The graph of a model with keys hidden from queries, made from the one that it has without.

A mask is put into the graph where it acts when the model runs: before a softmax, or among the
operands of fused attention. What that gives is what another export would, without its seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from retinoscope.anatomy.attentions import FUSED
from retinoscope.anatomy.dissect import Dissection, read_graph
from retinoscope.anatomy.graph.export import Graph
from retinoscope.anatomy.graph.flow import Flow, arguments, operation


@dataclass(frozen=True)
class Mask:
    """What is hidden from whom, in one operation of a graph."""

    hidden: Tensor
    """True where a query may not look; (queries, keys), or as it is broadcast against logits."""
    node: fx.Node
    """Fused attention, or a softmax."""


def masked(found: Dissection, masks: Sequence[Mask]) -> Dissection | None:
    """The dissection of a model that does the same with masks; None where one does not fit."""
    source = found.flow.source
    graph, twins = fx.Graph(), {}
    graph.output(graph.graph_copy(source.graph, twins))
    sheet = Graph(
        graph,
        twins[source.image],
        twins[source.logits],
        {twins[node]: value for node, value in source.constants.items()},
        source.most,
        {twins[node] for node in source.parameters},
        {twin: source.paths[node] for node, twin in twins.items()},
    )
    for number, mask in enumerate(masks):
        if not _put(sheet, twins[mask.node], mask.hidden, number):
            return None
    return read_graph(sheet, found.anatomy.model)


def read_from(found: Dissection, model: nn.Module, other: nn.Module) -> Dissection:
    """The same dissection over the parameters and buffers that ``other`` holds under their names.

    Args:
        found: The dissection of ``model``.
        model: Whose tensors it reads.
        other: A copy of it, or one that has more.
    """
    theirs = _tensors(other)
    twins = {id(tensor): theirs.get(name, tensor) for name, tensor in _tensors(model).items()}
    source = found.flow.source
    constants = {node: twins.get(id(value), value) for node, value in source.constants.items()}
    return replace(found, flow=Flow(replace(source, constants=constants)))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _put(sheet: Graph, node: fx.Node, hidden: Tensor, number: int) -> bool:
    """Hide keys in one operation; False where what is there cannot be joined with the mask."""
    if operation(node) != FUSED:
        (logits, *rest), fill = node.args, torch.ops.aten.masked_fill.Scalar
        with sheet.graph.inserting_before(node):
            mask = _constant(sheet, f"hidden_{number}", hidden)
            filled = _call(sheet, fill, (logits, mask, -torch.inf), logits, node)
        node.args = (filled, *rest)
        return True
    given = arguments(node)["attn_mask"]
    if given is not None and given.meta["val"].shape[-2:] != hidden.shape[-2:]:
        return False  # broadcast: what comes out would have another shape
    with sheet.graph.inserting_before(node):
        if given is None:
            mask = _constant(sheet, f"seen_{number}", ~hidden)
        elif given.meta["val"].dtype is torch.bool:
            seen = _constant(sheet, f"seen_{number}", ~hidden)
            mask = _call(sheet, torch.ops.aten.bitwise_and.Tensor, (given, seen), given, node)
        else:
            seen = _constant(sheet, f"hidden_{number}", hidden)
            fill = torch.ops.aten.masked_fill.Scalar
            mask = _call(sheet, fill, (given, seen, -torch.inf), given, node)
    if "attn_mask" in node.kwargs or len(node.args) < 4:
        node.kwargs = {**node.kwargs, "attn_mask": mask}
    else:
        node.args = (*node.args[:3], mask, *node.args[4:])
    return True


def _constant(sheet: Graph, name: str, value: Tensor) -> fx.Node:
    node = sheet.graph.create_node("get_attr", name)
    node.meta["val"] = value
    sheet.constants[node], sheet.paths[node] = value, ()
    return node


def _call(sheet: Graph, target: Any, args: tuple[Any, ...], like: Any, beside: fx.Node) -> fx.Node:
    """A call that gives a tensor like one that is there, in the modules of ``beside``."""
    node = sheet.graph.create_node("call_function", target, args)
    node.meta = copy(beside.meta) | {"val": like.meta["val"]}
    sheet.paths[node] = sheet.paths[beside]
    return node
