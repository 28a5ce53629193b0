"""Taps: values inside a unit that can be read while it runs, in a uniform layout.

An attention provides its queries, keys, values and weights per head, and where they are in the
image; a residual unit provides its branch.
The meaning of each tensor's dimensions determines their layout: windows that were folded into the
batch are unfolded again, and heads are identified whatever the model's own order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from retinoscope.anatomy.attentions import (
    Attention,
    attentions,
    distribution,
    fused_axes,
    makers,
    measured_weights,
    weights,
)
from retinoscope.anatomy.axes import POSITIONS, Axes, Dimension, Factor, roles_of
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.flow import arguments, operation
from retinoscope.anatomy.layout import Lens
from retinoscope.anatomy.reach import Reach, hidden, hidden_pairs, positions_of, weight_axes
from retinoscope.anatomy.units.cut import Piece
from retinoscope.anatomy.writer import Writer

_FOLDS = ("queries", "keys", "values", "weights", "softmax")
_PRODUCTS = {"matmul", "bmm", "mm"}


@dataclass(frozen=True)
class Fold:
    """How to rearrange a tensor to (N, …), such as (N, windows, heads, rows, columns)."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def apply(self, tensor: Tensor) -> Tensor:
        """The tensor of the model, rearranged."""
        return tensor.reshape(self.sizes).permute(self.order).reshape(-1, *self.shape)

    def undo(self, seen: Tensor, shape: Sequence[int]) -> Tensor:
        """Back to the layout of the model, in which the tensor has that shape."""
        inverse = [self.order.index(place) for place in range(len(self.order))]
        moved = [self.sizes[place] for place in self.order]
        return seen.reshape(moved).permute(inverse).reshape(shape)


@dataclass(frozen=True)
class _Source:
    """The nodes from which one tap of a unit is computed, and how."""

    name: str
    nodes: tuple[fx.Node, ...]
    fold: Fold | None = None
    attention: Attention | None = None
    """Used if the weights are computed inside a fused operation."""
    lens: Lens | None = None
    reach: Reach | None = None
    """What the attention reaches; of the tap ``softmax`` only."""

    @property
    def tensor(self) -> tuple[object, ...]:
        """Sources that agree in this give the same tensor."""
        return self.nodes, self.fold, self.lens, self.attention

    def made(self, known: Mapping[fx.Node, Tensor]) -> Tensor:
        """The tap, from the tensors of its nodes."""
        if self.name == "branch":
            branch = sum(known[node] for node in self.nodes)
            assert isinstance(branch, Tensor)  # a residual unit has at least one
            assert self.lens is not None
            return self.lens.maps(branch)
        tensor = (
            known[self.nodes[0]]
            if self.attention is None
            else measured_weights(self.attention, known)
        )
        assert self.fold is not None  # all taps except the branch are folded
        return self.fold.apply(tensor)


class UnitTaps:
    """The requested taps of one unit, as far as it has them."""

    def __init__(
        self,
        dissection: Dissection,
        writer: Writer,
        piece: Piece,
        lens: Lens | None,
        asked: Collection[str],
    ) -> None:
        self.sources = [
            *_attention_sources(dissection, writer, piece, asked),
            *(_branch(dissection, piece, lens) if "branch" in asked else ()),
        ]
        self.nodes = list(dict.fromkeys(node for one in self.sources for node in one.nodes))

    def made(self, values: Sequence[Tensor]) -> dict[str, tuple[Tensor, ...]]:
        """The taps by name, from the values of the nodes, in order."""
        known = dict(zip(self.nodes, values, strict=True))
        found: dict[str, tuple[Tensor, ...]] = {}
        tensors: dict[tuple[object, ...], Tensor] = {}
        for source in self.sources:
            if source.tensor not in tensors:
                tensors[source.tensor] = source.made(known)
            found[source.name] = (*found.get(source.name, ()), tensors[source.tensor])
        return found

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """What each attention reaches, in the order of the tap ``softmax``."""
        return tuple(source.reach for source in self.sources if source.reach is not None)


def _branch(dissection: Dissection, piece: Piece, lens: Lens | None) -> Iterable[_Source]:
    step = piece.residual
    if step is not None and step.skip is not None and lens is not None:
        shape = dissection.flow.shape
        if all(shape(node) == shape(step.skip.operand) for node in step.skip.branches):
            yield _Source("branch", step.skip.branches, lens=lens)


def _attention_sources(
    dissection: Dissection, writer: Writer, piece: Piece, asked: Collection[str]
) -> Iterable[_Source]:
    if not set(_FOLDS) & set(asked):
        return
    for attention in attentions(dissection, piece.nodes):
        if attention is None:
            continue
        for name, node in _operands(dissection, attention).items():
            if name in asked and (fold := _fold(dissection, dissection.meaning[node].axes)):
                yield _Source(name, (node,), fold)
        fused = None if attention.weights is not None else attention
        if "weights" in asked and (fold := weights_fold(dissection, attention)):
            yield _Source("weights", tuple(makers(attention)), fold, fused)
        if "softmax" in asked and (
            fold := _folded(dissection, *weight_axes(dissection, attention))
        ):
            node = distribution(dissection, attention)
            nodes = tuple(makers(attention)) if node is None else (node,)
            reach = _reach(dissection, writer, piece, attention, fold)
            yield _Source("softmax", nodes, fold, fused, reach=reach)


def _reach(
    dissection: Dissection, writer: Writer, piece: Piece, attention: Attention, fold: Fold
) -> Reach:
    images = dissection.flow.source.batch or 1
    even = hidden_pairs(dissection, writer, attention, images)
    pairs = hidden(None if even is None else fold.apply(even))
    return Reach(*positions_of(dissection, piece, attention), pairs)


def _operands(dissection: Dissection, attention: Attention) -> dict[str, fx.Node]:
    """Queries, keys and values; the first two only if a single product computes the logits."""
    if attention.weights is None:
        given, names = arguments(attention.node), {"query": "queries", "key": "keys"}
        found = {name: given[role] for role, name in (names | {"value": "values"}).items()}
        return {name: node for name, node in found.items() if node in dissection.meaning}
    found = {"values": attention.values}
    products = _logit_products(dissection, attention)
    if len(products) == 1:
        first, second = dissection.flow.inputs(products[0])[:2]
        axes = dissection.meaning[products[0]].axes
        spread = weights(dissection, attention)
        swapped = len(axes) >= 2 and abs(spread.key_dim) == 2 and abs(spread.query_dim) == 1
        found |= (
            {"queries": second, "keys": first} if swapped else {"queries": first, "keys": second}
        )
    return found


def _logit_products(dissection: Dissection, attention: Attention) -> list[fx.Node]:
    """The products of two states that the softmax reads, through operations in between."""
    found, seen = [], set()
    waiting = [n for softmax in attention.softmaxes for n in dissection.flow.inputs(softmax)]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        inputs = dissection.flow.inputs(node)
        if operation(node) in _PRODUCTS and len(inputs) == 2:
            found.append(node)
        elif operation(node) not in {"linear", "conv2d", "einsum"}:
            waiting += inputs
    return found


def weights_fold(dissection: Dissection, attention: Attention) -> Fold | None:
    """Weights as (N, windows, heads, queries, keys)."""
    if attention.weights is not None:
        axes = dissection.meaning[attention.weights].axes
        spread = weights(dissection, attention)
        queries, keys = spread.query_dim + len(axes), spread.key_dim + len(axes)
        return _folded(dissection, axes, queries, keys)
    query, key = fused_axes(dissection, attention)
    axes = (*query[:-1], key[-2])
    return _folded(dissection, axes, len(axes) - 2, len(axes) - 1)


def _fold(dissection: Dissection, axes: Axes) -> Fold | None:
    """Queries, keys or values as (N, windows, heads, positions, channels)."""
    inside = [place for place, d in enumerate(axes) if "n" not in roles_of(d)]
    positions = [place for place in inside if roles_of(axes[place]) & POSITIONS]
    channels = [place for place in inside if place not in positions]
    if not positions or not channels:
        return None
    return _folded(dissection, axes, positions[-1], channels[-1])


def _folded(dissection: Dissection, axes: Axes, rows: int, columns: int) -> Fold | None:
    """Images first, then windows, heads, and the two named dimensions."""
    factors = [(place, factor) for place, dimension in enumerate(axes) for factor in dimension]
    groups: list[list[int]] = [[], [], [], [], []]
    for index, (place, factor) in enumerate(factors):
        if factor.role == "n":
            groups[0].append(index)
        elif place in (rows, columns):
            groups[3 if place == rows else 4].append(index)
        else:
            groups[1 if factor.roles() & POSITIONS else 2].append(index)
    if not has_images(dissection, groups[0]) or _lost(axes, rows, columns):
        return None
    return grouped(factors, groups)


def has_images(dissection: Dissection, factors: Sequence[int]) -> bool:
    """Whether the images are one factor of a tensor's shape; a single image is none."""
    return len(factors) == 1 or (not factors and dissection.flow.source.batch == 1)


def grouped(factors: Sequence[tuple[int, Factor]], groups: Sequence[Sequence[int]]) -> Fold:
    """One dimension per group of factors, given by their indices; the images come first."""
    sizes = tuple(-1 if factor.role == "n" else factor.size for _, factor in factors)
    shape = tuple(math.prod(sizes[index] for index in group) for group in groups[1:])
    return Fold(sizes, tuple(index for group in groups for index in group), shape)


def _lost(axes: Sequence[Dimension], rows: int, columns: int) -> bool:
    """Whether images are part of a dimension that should be positions or channels."""
    return any("n" in roles_of(axes[place]) for place in (rows, columns))
