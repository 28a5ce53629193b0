"""Inserts attention masks into the graph of a model.

A mask is inserted where it acts when the model runs: before a softmax, or as an operand of fused
attention. The result is the same as that of another export, which would take seconds.
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
    """The keys that are hidden from queries in one operation of a graph."""

    hidden: Tensor
    """True where a query must not see a key; (queries, keys), or broadcastable to the logits."""
    node: fx.Node
    """Fused attention, or a softmax."""


def masked(found: Dissection, masks: Sequence[Mask]) -> Dissection | None:
    """The dissection of the model with masks; None if a mask does not fit."""
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
    """The same dissection with the parameters and buffers of ``other`` with the same names.

    Args:
        found: The dissection of ``model``.
        model: The model whose tensors it reads.
        other: A copy of it, possibly with more tensors.
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
    """Mask keys in one operation; False if an existing mask cannot be combined with ours."""
    if operation(node) != FUSED:
        (logits, *rest), fill = node.args, torch.ops.aten.masked_fill.Scalar
        with sheet.graph.inserting_before(node):
            mask = _constant(sheet, f"hidden_{number}", hidden)
            filled = _call(sheet, fill, (logits, mask, -torch.inf), logits, node)
        node.args = (filled, *rest)
        return True
    given = arguments(node)["attn_mask"]
    if given is not None and given.meta["val"].shape[-2:] != hidden.shape[-2:]:
        return False  # broadcast: the output would have another shape
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
    """A call whose output is like an existing tensor, in the modules of ``beside``."""
    node = sheet.graph.create_node("call_function", target, args)
    node.meta = copy(beside.meta) | {"val": like.meta["val"]}
    sheet.paths[node] = sheet.paths[beside]
    return node
