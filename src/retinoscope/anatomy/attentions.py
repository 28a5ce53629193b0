"""Finds the attentions in a graph: their values and weights, and which positions see which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import cast

import torch
from torch import Tensor, fx

from retinoscope.anatomy.axes import Axes, Dimension, is_soft, position, roles_of, size_of
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.flow import arguments, operation
from retinoscope.anatomy.reading.facts import WORK, Fact
from retinoscope.anatomy.units.names import common_path
from retinoscope.anatomy.writer import Writer

FUSED = "scaled_dot_product_attention"
_PRODUCTS = {"matmul", "bmm", "mm", "einsum"}
_SOFTMAX = {"softmax", "_softmax"}
_GRID = frozenset("yxt")


@dataclass(frozen=True)
class Attention:
    """An operation that mixes values with weights normalised by a softmax."""

    node: fx.Node
    values: fx.Node
    """The operand with the values."""
    weights: fx.Node | None
    """The operand with the weights; None if the operation computes them itself."""
    softmaxes: tuple[fx.Node, ...]
    """The operations that normalise the weights; ``node`` itself if it computes them."""
    behind: tuple[fx.Node, ...] = ()
    """The operations on the weights between softmax and values."""


@dataclass(frozen=True)
class Places:
    """The positions along one dimension: all of a grid, and tokens outside it."""

    height: int
    width: int
    prefix: int
    order: tuple[int, ...]
    """The index of each entry, counting tokens outside the grid first, then the grid by rows."""


@dataclass(frozen=True)
class Spread:
    """The meaning of the dimensions of an attention's logits or weights."""

    queries: Places | None
    """None if queries are not a complete grid: see ``asks`` and ``apart``."""
    keys: Places | None
    query_dim: int
    """The dimension of the queries, counted from the last."""
    key_dim: int
    asks: bool
    """Whether positions of a grid are, or may be, queries; in class attention they are not."""
    apart: bool
    """Whether other dimensions also contain positions, so that not all of them see each other."""


def attentions(dissection: Dissection, nodes: Sequence[fx.Node]) -> list[Attention | None]:
    """The attentions among ``nodes``, in the order of execution.

    An entry is None if the weights do not come from a softmax (linear attention), or if they are
    not multiplied with the values in one operation.
    """
    inside = set(nodes)
    found: list[Attention | None] = []
    for node in nodes:
        if Fact.ATTENTION in dissection.facts[node] and not _normalises(node):
            found.append(_attention(dissection, node, inside))
    return found


def _normalises(node: fx.Node) -> bool:
    """Whether weights are only summed up here, to be divided by their sum."""
    if operation(node) != "sum":
        return False
    readers = [node]
    while len(readers) == 1 and operation(readers[0]) in {"sum", "unsqueeze", "expand"}:
        readers = list(readers[0].users)
    return all(operation(n) == "div" and n.args[0] is node.args[0] for n in readers)


def _attention(dissection: Dissection, node: fx.Node, inside: set[fx.Node]) -> Attention | None:
    if operation(node) == FUSED:
        return Attention(node, arguments(node)["value"], None, (node,))
    operands = dissection.flow.inputs(node)
    soft = [n for n in operands if any(map(is_soft, dissection.meaning[n].axes))]
    if operation(node) not in _PRODUCTS or len(operands) != 2 or len(soft) != 1:
        return None
    (values,) = (n for n in operands if n is not soft[0])
    softmaxes, behind = _back(dissection, soft[0], inside)
    made = any(n in dissection.meaning for n in softmaxes)
    return Attention(node, values, soft[0], tuple(softmaxes), tuple(behind)) if made else None


def _back(
    dissection: Dissection, weights: fx.Node, inside: set[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The operations that normalise weights, and the operations after them.

    Some of them may depend only on parameters, as in gated attention.
    """
    softmaxes, behind, waiting = [], [], [weights]
    while waiting:
        node = waiting.pop()
        if node in softmaxes or node in behind:
            continue
        if node in dissection.meaning and node not in inside:
            continue
        if operation(node) in _SOFTMAX:
            softmaxes.append(node)
        else:
            behind.append(node)
            waiting += dissection.flow.data_inputs(node)
    return softmaxes, behind


def logits(dissection: Dissection, attention: Attention) -> Spread:
    """The meaning of the logits' dimensions, at the input of the softmax."""
    if attention.weights is None:
        return _fused(dissection, attention)
    softmax = next(n for n in attention.softmaxes if n in dissection.meaning)
    axes = dissection.meaning[softmax].axes
    return _spread(axes, cast(int, arguments(softmax)["dim"]) % len(axes) - len(axes))


def weights(dissection: Dissection, attention: Attention) -> Spread:
    """The meaning of the weights' dimensions, where they are multiplied with the values."""
    if attention.weights is None:
        return _fused(dissection, attention)
    axes = dissection.meaning[attention.weights].axes
    soft = [index - len(axes) for index, d in enumerate(axes) if is_soft(d)]
    return _spread(axes, soft[-1])


def distribution(dissection: Dissection, attention: Attention) -> fx.Node | None:
    """Where the weights of each query sum to 1; None if a fused operation computes them.

    These are the weights themselves, or the softmax if a learned map mixes heads after it.
    """
    made = [node for node in attention.softmaxes if node in dissection.meaning]
    mixed = any(dissection.facts.get(node, set()) & WORK for node in attention.behind)
    return made[0] if mixed and len(made) == 1 else attention.weights


def fused_axes(dissection: Dissection, attention: Attention) -> tuple[Axes, Axes]:
    """The meaning of the queries and keys of a fused attention.

    One of them may be learned, such as the query of a pooling head: its entries are tokens outside
    the grid, and its other dimensions are those of its counterpart.
    """
    given = arguments(attention.node)
    known = [dissection.meaning.get(given[name]) for name in ("query", "key")]
    found = []
    for name, own, other in zip(("query", "key"), known, known[::-1], strict=True):
        if own is None:
            assert other is not None  # otherwise the attention would not depend on the image
            rows = position("p", dissection.flow.shape(given[name])[-2])
            found.append((*other.axes[:-2], rows, other.axes[-1]))
        else:
            found.append(own.axes)
    return found[0], found[1]


def _fused(dissection: Dissection, attention: Attention) -> Spread:
    query, key = fused_axes(dissection, attention)
    beside = (*query[:-2], query[-1], *key[:-2], key[-1])
    return _spread((*beside, query[-2], key[-2]), -1, -2)


def _spread(axes: Axes, key_dim: int, query_dim: int | None = None) -> Spread:
    query_dim = query_dim or _query_dim(axes, key_dim)
    both = (query_dim + len(axes), key_dim + len(axes))
    beside = [d for index, d in enumerate(axes) if index not in both]
    unclear = any("?" in roles_of(d) for d in (*beside, axes[query_dim]))
    return Spread(
        places(axes[query_dim]),
        places(axes[key_dim]),
        query_dim,
        key_dim,
        asks=unclear or bool(roles_of(axes[query_dim]) & _GRID),
        apart=any(roles_of(d) & _GRID for d in beside),
    )


@torch.no_grad()
def measured(dissection: Dissection, images: Tensor) -> Iterator[tuple[Attention, Tensor]]:
    """Yield the weights of every attention of the model, for a batch of images."""
    pieces = [dissection.pieces[unit.name] for unit in dissection.anatomy]
    writer = Writer(dissection.flow, pieces)
    shared, state = writer.preamble(len(images)), images
    for piece in pieces:
        inside = [found for found in attentions(dissection, piece.nodes) if found]
        operands = list(dict.fromkeys(node for found in inside for node in makers(found)))
        segment = writer.segment(piece, [piece.exit, *operands])
        state, *values = segment(state, len(images), *shared)
        known = dict(zip(operands, values, strict=True))
        for found in inside:
            yield found, measured_weights(found, known)


def makers(attention: Attention) -> list[fx.Node]:
    """The nodes that contain the weights, or from which they are computed."""
    if attention.weights is not None:
        return [attention.weights]
    given = arguments(attention.node)
    return [n for n in (given[x] for x in ("query", "key", "attn_mask")) if n is not None]


def measured_weights(attention: Attention, known: Mapping[fx.Node, Tensor]) -> Tensor:
    """The weights of an attention, from the tensors of its :func:`makers`."""
    if attention.weights is not None:
        return known[attention.weights]
    given = arguments(attention.node)
    query, key = known[given["query"]], known[given["key"]]
    mask = known.get(given["attn_mask"])
    if given["enable_gqa"]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if query.dtype in (torch.float16, torch.bfloat16):  # fused kernels use float32 as well
        query, key = query.float(), key.float()
    scale = query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    logits = (query * scale) @ key.mT
    if given["is_causal"]:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is not None:
        seen = mask.dtype is torch.bool
        logits = logits.masked_fill(~mask, -torch.inf) if seen else logits + mask
    return logits.softmax(-1)


def holder(dissection: Dissection, attention: Attention) -> str:
    """The path of the deepest module that contains all of it; empty for the model itself."""
    return common_path((attention.node, *attention.softmaxes), dissection.flow.source.paths)


def run_of(node: fx.Node, module: str) -> str:
    """The call of a module that an operation belongs to: a module may run several times."""
    stack = node.meta.get("nn_module_stack") or {}
    # "model" is the name that export gives to the whole model; further calls are marked with @1.
    called = f"model.{module}" if module else "model"
    return next((key for key, (path, _) in stack.items() if path == called), "")


def _query_dim(axes: Axes, key_dim: int) -> int:
    """The dimension with the most positions, or else the one before the keys."""
    others = [place for place in range(-len(axes), 0) if place != key_dim]
    gridded = [place for place in others if roles_of(axes[place]) & _GRID]
    within = [place for place in gridded if "n" not in roles_of(axes[place])]
    return (within or gridded or others)[-1]


def places(dimension: Dimension) -> Places | None:
    """The positions along a dimension, if it is a complete grid, possibly with other tokens.

    Example:
        >>> from retinoscope.anatomy.axes import Factor
        >>> places((Factor("x", 2), Factor("y", 3)))
        Places(height=3, width=2, prefix=0, order=(0, 2, 4, 1, 3, 5))
    """
    tokens = len(dimension) == 1 and dimension[0].role == "t"
    parts = dimension[0].parts if tokens else (dimension,)
    grids = [part for part in parts if roles_of(part) != {"p"}]
    if len(grids) != 1 or not roles_of(grids[0]) == {"y", "x"}:
        return None
    (grid,) = grids
    sizes = {}
    for role in "yx":
        factors = sorted((f for f in grid if f.role == role), key=lambda f: f.stride)
        sizes[role] = 1
        for factor in factors:
            if factor.stride != sizes[role] and factor.size > 1:
                return None
            sizes[role] *= factor.size
    prefix = sum(size_of(part) for part in parts if part is not grid)
    order, beside = [], iter(range(prefix))
    for part in parts:
        if part is not grid:
            order += [next(beside) for _ in range(size_of(part))]
            continue
        for steps in product(*(range(f.size) for f in grid)):
            at = {"y": 0, "x": 0}
            for factor, step in zip(grid, steps, strict=True):
                at[factor.role] += step * factor.stride
            order.append(prefix + at["y"] * sizes["x"] + at["x"])
    return Places(sizes["y"], sizes["x"], prefix, tuple(order))
