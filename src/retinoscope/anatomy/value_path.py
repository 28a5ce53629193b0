"""Follows the values of an attention from the map that computes them to the map that reads them.

In a transformer, these are W_V and W_proj: what an attention with the weights A adds to its input X
is A X W_V W_proj, summed over heads. Both are found by tracking channels through the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from retinoscope.anatomy.attentions import Attention, attentions, weights
from retinoscope.anatomy.channels import Channels, origin
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.flow import Flow, arguments, computed, is_size, operation
from retinoscope.anatomy.heads import heads_of_weights, weights_shape
from retinoscope.anatomy.sites import LEARNED


class Unclear(Exception):
    """The maps around an attention cannot be told; the message is the reason."""


@dataclass(frozen=True)
class HeadMaps:
    """The value and output maps of each head, for multiplication from the right."""

    values: Tensor
    """(heads, width, head width): W_V."""
    output: Tensor
    """(heads, head width, width): W_proj, times a scale after it such as LayerScale."""


@dataclass(frozen=True)
class SelfAttention:
    """An attention whose queries and keys are the same tokens, and its sizes."""

    attention: Attention
    windows: int
    heads: int
    tokens: int
    """Tokens per window."""

    @property
    def plain(self) -> bool:
        """Whether it is a plain product, whose channels come last; an einsum may have any order."""
        return operation(self.attention.node) != "einsum"


def self_attentions(dissection: Dissection, unit: str) -> list[SelfAttention]:
    """The attentions of a unit; raises :class:`Unclear` if one of them is of another sort.

    Empty if the unit has no attention over positions.
    """
    found = []
    for attention in attentions(dissection, dissection.pieces[unit].nodes):
        ends_of_values(dissection, attention)
        assert attention is not None  # otherwise its ends are unclear
        shape, spread = weights_shape(dissection, attention), weights(dissection, attention)
        if shape is None:
            raise Unclear("its heads cannot be told apart")
        if spread.queries != spread.keys or shape[-2] != shape[-1]:
            raise Unclear("its queries and keys are not the same tokens")
        if shape[-1] < 2:
            raise Unclear("it has only one token")
        found.append(SelfAttention(attention, *shape[:3]))
    return found


def ends_of_values(dissection: Dissection, attention: Attention | None) -> tuple[fx.Node, fx.Node]:
    """The node that computes the values, and the node that reads what is mixed from them."""
    if attention is None:
        raise Unclear("its weights do not come from a softmax over keys")
    if any(dissection.facts.get(node, set()) & LEARNED for node in attention.behind):
        raise Unclear("its heads are mixed after the softmax")
    made, node = origin(dissection, attention.values), attention.node
    while True:
        users = dissection.flow.users(node)
        if len(users) != 1:
            raise Unclear(f"its mixed values are used {len(users)} times")
        (node,) = users
        if not dissection.moves(node):
            return made, node


def tracked_values(
    dissection: Dissection, attention: Attention, made: fx.Node, entry: fx.Node
) -> tuple[Channels, tuple[int, ...]]:
    """The channels of the values, and which of them reaches each channel at ``entry``.

    Args:
        dissection: The dissection of the model.
        attention: The attention in between.
        made: The node that computes the values.
        entry: The input of the map that reads them.
    """
    channels = Channels(dissection, made)
    channels.through(attention)
    rows = _last_axis(channels.at(entry))
    if rows is None or -1 in rows:
        raise Unclear("its values do not reach the output map one to one")
    return channels, rows


def head_maps(dissection: Dissection, attention: Attention | None) -> HeadMaps:
    """The value and output maps of each head; raises :class:`Unclear` if there are none.

    Heads are in the order of the tap ``weights``, whatever the order of the model's channels.
    """
    made, taken = ends_of_values(dissection, attention)
    assert attention is not None  # otherwise the ends are unclear
    before = _weight(dissection, made, "its values are computed by")
    behind = _weight(dissection, taken, "its mixed values go into")
    if before.shape[1] != behind.shape[0]:
        raise Unclear(
            "W_V W_proj has eigenvalues only if it is square, but it maps "
            f"{before.shape[1]} channels to {behind.shape[0]}"
        )
    (entry,) = dissection.flow.inputs(taken)
    channels, rows = tracked_values(dissection, attention, made, entry)
    heads = _last_axis(channels.moved(attention.node, _mixing_head(dissection, attention), entry))
    if heads is None or any(head != round(head) for head in heads):
        raise Unclear("its heads do not reach the output map one by one")
    behind = behind * _scale(dissection, taken, behind)[:, None]
    columns = [[k for k, head in enumerate(heads) if head == h] for h in sorted(set(heads))]
    if len(set(map(len, columns))) > 1:
        raise Unclear("its heads have different widths")
    return HeadMaps(
        torch.stack([before[[rows[k] for k in own]].mT for own in columns]),
        torch.stack([behind[:, own].mT for own in columns]),
    )


def _mixing_head(dissection: Dissection, attention: Attention) -> Tensor:
    """The head that mixes each entry of an attention's output, as the model stores it."""
    images = dissection.flow.source.batch or 2
    heads = heads_of_weights(dissection, attention, images)
    if heads is None:
        raise Unclear("its heads cannot be told apart")
    shape = dissection.flow.shape(attention.node, images)
    if attention.weights is None:
        return heads[..., :1].expand(shape)
    ones = torch.ones(dissection.flow.shape(attention.values, images), dtype=torch.float64)
    mixed, total = (
        computed(attention.node, {attention.weights: given, attention.values: ones})
        for given in (heads, torch.ones_like(heads))
    )
    return mixed / total


def _last_axis(tensor: Tensor) -> tuple[Any, ...] | None:
    """The entries along the last axis; None if they are not the same everywhere else."""
    rows = tensor.flatten(0, -2)
    return None if (rows != rows[0]).any() else tuple(rows[0].tolist())


def _weight(dissection: Dissection, node: fx.Node, what: str) -> Tensor:
    """The matrix (outputs, inputs) of a linear map, in double precision."""
    if operation(node) != "linear":
        raise Unclear(f"{what} {operation(node)}, not a linear map")
    weight = arguments(node)["weight"]
    if weight in dissection.flow.dependent:
        raise Unclear(f"{what} a linear map whose weights depend on the image")
    return _value(dissection.flow, weight).detach().double().cpu()


def _scale(dissection: Dissection, node: fx.Node, like: Tensor) -> Tensor:
    """The learned scales of the channels after a linear map, such as LayerScale; 1 if none."""
    flow, scale = dissection.flow, torch.ones(len(like), dtype=torch.float64)
    while len(users := flow.users(node)) == 1:
        (user,) = users
        others = [n for n in flow.data_inputs(user) if n is not node]
        if operation(user) == "mul" and len(others) == 1 and others[0] in flow.learned:
            factor = _value(flow, others[0]).detach().double().cpu()
            if factor.numel() != len(like) or factor.shape[-1] != len(like):
                break
            scale = scale * factor.flatten()
        elif not dissection.moves(user) and operation(user) not in {"dropout", "clone"}:
            break
        node = user
    return scale


@torch.no_grad()
def _value(flow: Flow, node: fx.Node) -> Any:
    """The value of a node that does not depend on the image, such as a computed weight."""
    if node in flow.source.constants:
        return flow.source.constants[node]
    if is_size(node) or node.op != "call_function":
        raise Unclear("its weights are computed from the number of images")
    return computed(node, {n: _value(flow, n) for n in node.all_input_nodes})
