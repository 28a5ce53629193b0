"""Removes in-place operations from a graph, so that stored values cannot be overwritten later."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

from retinoscope.anatomy.graph.pairwise import split_einsums

_KINDS = ("dropout", "feature_dropout", "alpha_dropout")
_DROPOUTS = {f"aten::{name}{end}" for name in _KINDS for end in ("", "_")}


def functional(program: ExportedProgram) -> ExportedProgram:
    """The same program with in-place operations replaced by their functional versions.

    Einsums of many operands are split into products of two.
    """
    _inline_regions(program.graph_module)
    _drop_identities(program.graph)
    split_einsums(program.graph, set(map(str, program.graph_signature.user_inputs)))
    if not _replace_in_place(program.graph):
        program = program.run_decompositions({})  # slower, but correct if views are written to
        _drop_identities(program.graph)
    return program


def _drop_identities(graph: fx.Graph) -> None:
    """Remove operations that return their operand: dropout in eval mode, slices of everything."""
    for node in list(graph.nodes):
        if not isinstance(node.target, OpOverload):
            continue
        name = node.target._schema.name
        asleep = name in _DROPOUTS and not node.args[2]  # MC dropout stays active in eval mode
        if asleep or (name == "aten::slice" and _alike(node, node.args[0])):
            same = node.args[0]
        elif name == "aten::slice_scatter" and _alike(node.args[1], node.args[0]):
            same = node.args[1]
        else:
            continue
        node.replace_all_uses_with(cast(fx.Node, same))
        graph.erase_node(node)


def _alike(node: Any, other: Any) -> bool:
    return str(node.meta["val"].shape) == str(other.meta["val"].shape)


def _inline_regions(module: fx.GraphModule) -> None:
    """Inline regions that switch gradients or autocast into the surrounding graph.

    A region with autocast enabled is kept, because it changes the precision.
    """
    for node in list(module.graph.nodes):
        name = getattr(node.target, "__name__", "")
        if name == "wrap_with_set_grad_enabled":
            _, inside, *given = node.args
        elif name == "wrap_with_autocast" and not node.args[2]:
            *_, inside, given = *node.args[:5], node.args[5:]
        else:
            continue
        body = getattr(module, str(cast(fx.Node, inside).target)).graph
        places = dict(zip((n for n in body.nodes if n.op == "placeholder"), given, strict=True))
        with module.graph.inserting_before(node):
            made = module.graph.graph_copy(body, places)
        entries = made if isinstance(made, tuple | list) else (made,)
        for user in list(node.users):
            user.replace_all_uses_with(entries[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(node)


def _replace_in_place(graph: fx.Graph) -> bool:
    """Replace each in-place operation by its functional version; False if that is not safe.

    It is safe if no view shares memory with the tensor that is written to. Later readers of that
    tensor then use the result of the functional version. If it is not safe, nothing is changed.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    writers = [node for node in graph.nodes if _writes(node)]
    if not all(_twin(node) and not _has_views(node.args[0]) for node in writers):
        return False
    for node in writers:
        written = node.args[0]
        node.target = _twin(node)
        for user in list(written.users):
            if order[user] > order[node]:
                user.replace_input_with(written, node)
    return True


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in node.target._schema.arguments
    )


def _twin(node: fx.Node) -> OpOverload | None:
    target = cast(OpOverload, node.target)
    if not target._schema.name.endswith("_"):
        return None  # it writes to an ``out`` argument
    packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::").rstrip("_"), None)
    return getattr(packet, target._overloadname, None)


def _has_views(node: Any) -> bool:
    return not isinstance(node, fx.Node) or _is_view(node) or any(map(_is_view, node.users))


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True  # selects from a tuple, which may contain views
    return isinstance(node.target, OpOverload) and any(
        returned.alias_info is not None and not returned.alias_info.is_write
        for returned in node.target._schema.returns
    )
