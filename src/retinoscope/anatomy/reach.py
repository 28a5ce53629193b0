"""What an attention reaches: where its queries and keys are, and which pairs are masked.

The meaning of its dimensions gives the position of every entry, in windows too. Which keys a mask
hides from a query is found by running the model's own operations between logits and softmax with
all logits and learned biases set to 0: what then has no weight is hidden, however it is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from torch import Tensor, fx

from retinoscope.anatomy.attentions import Attention, distribution, fused_axes, logits, weights
from retinoscope.anatomy.axes import POSITIONS, Axes, Dimension, Factor, roles_of, size_of
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.flow import ancestors, arguments, is_tensor, operation
from retinoscope.anatomy.layout import lens
from retinoscope.anatomy.reading.facts import WORK
from retinoscope.anatomy.reading.reader import as_list
from retinoscope.anatomy.units.cut import Piece
from retinoscope.anatomy.writer import Writer

_PRODUCTS = {"matmul", "bmm", "mm", "einsum"}
_HIDDEN = 1e-20
"""Keys below this weight at equal logits are masked; Swin's masks of −100 give 10⁻⁴⁴."""


@dataclass(frozen=True, eq=False)
class Positions:
    """Where the queries or keys of an attention are in the image."""

    pixels: np.ndarray
    """(entries, 2): vertical and horizontal position in pixels, counted from the corner of the
    window; NaN for tokens outside the grid."""
    grid: tuple[int, int]
    """Height and width of the whole map; (0, 0) if no entry is on a map."""
    cells: np.ndarray | None
    """(windows, entries): the index of each position in the whole map, row by row; −1 for tokens
    outside the grid and for padding. None if unknown."""

    @property
    def inside(self) -> np.ndarray:
        """(entries,): which entries are positions of the grid."""
        return np.isfinite(self.pixels[:, 0])


@dataclass(frozen=True, eq=False)
class Reach:
    """The queries and keys of one attention."""

    queries: Positions | None
    """None if the graph does not show what its queries are."""
    keys: Positions | None
    hidden: Tensor | None = None
    """(windows, heads, queries, keys): True where a mask hides a key from a query; None if nothing
    is hidden, or if that depends on the image."""

    @cached_property
    def distance(self) -> np.ndarray | None:
        """(queries, keys): distance in pixels, NaN for tokens outside the grid; None if unknown."""
        if self.queries is None or self.keys is None:
            return None
        return np.linalg.norm(self.queries.pixels[:, None] - self.keys.pixels[None], axis=-1)

    @cached_property
    def choices(self) -> Tensor | None:
        """(windows, heads, queries): number of keys a query may see; None if it may see all."""
        return None if self.hidden is None else (~self.hidden).sum(-1)


def weight_axes(dissection: Dissection, attention: Attention) -> tuple[Axes, int, int]:
    """The meaning of the weights that sum to 1, and the dimensions of their queries and keys."""
    node = distribution(dissection, attention)
    if node is None:
        query, key = fused_axes(dissection, attention)
        return (*query[:-1], key[-2]), len(query) - 2, len(query) - 1
    axes = dissection.meaning[node].axes
    found = (weights if node is attention.weights else logits)(dissection, attention)
    return axes, found.query_dim + len(axes), found.key_dim + len(axes)


def positions_of(
    dissection: Dissection, piece: Piece, attention: Attention
) -> tuple[Positions | None, Positions | None]:
    """The positions of queries and keys."""
    axes, rows, columns = weight_axes(dissection, attention)
    beside = [d for place, d in enumerate(axes) if place not in (rows, columns)]
    map_ = _Map(dissection, piece, attention, beside)
    keys = None if size_of(axes[columns]) == 1 and not axes[columns] else map_.seen(axes[columns])
    return map_.seen(axes[rows]), keys


class _Map:
    """The map that an attention works on."""

    def __init__(
        self,
        dissection: Dissection,
        piece: Piece,
        attention: Attention,
        beside: Sequence[Dimension],
    ) -> None:
        self.image = dissection.anatomy.image[1:]
        self.windows = [f for d in beside for f in d if f.roles() & POSITIONS]
        states = (lens(dissection.meaning[node].axes) for node in (piece.exit, piece.entry))
        self.known = [found.grid.resolution for found in states if found]
        self.shift = _shift(dissection, piece, attention)

    def seen(self, dimension: Dimension) -> Positions | None:
        """The positions along one dimension; None if its meaning is not known exactly."""
        at = _steps(dimension)
        if at is None or any(f.stride == 0 for f in self.windows if f.role in "yx"):
            return None
        if not np.isfinite(at).any():
            return Positions(at, (0, 0), None)
        parts = dimension[0].parts if dimension[0].role == "t" else (dimension,)
        own = [f for part in parts for f in part if f.role in "yx"]
        window, total = (_extent(factors) for factors in (own, [*own, *self.windows]))
        grid = tuple(_side(t, w, s) for t, w, s in zip(total, window, self._sides, strict=True))
        pixels = (at + 0.5) * (np.array(self.image) / grid)
        return Positions(pixels, (grid[0], grid[1]), self._cells(at, total, grid))

    @property
    def _sides(self) -> tuple[list[int], list[int]]:
        return [height for height, _ in self.known], [width for _, width in self.known]

    def _cells(
        self, at: np.ndarray, total: tuple[int, int], grid: tuple[int, ...]
    ) -> np.ndarray | None:
        """The index of each entry in the whole map, for each window."""
        if self.shift is None or not all(f.role in "yx" for f in self.windows):
            return None
        if any(self.shift) and total != grid:
            return None  # shifted and padded: the order of the two is not known
        corners = np.array(_product(self.windows), dtype=float).reshape(-1, 2)
        whole = corners[:, None] + at[None]
        if (whole >= total).any():
            return None  # an incomplete axis
        rows, columns = np.moveaxis((whole - np.array(self.shift)) % np.array(total), -1, 0)
        inside = np.isfinite(rows) & (rows < grid[0]) & (columns < grid[1])
        index = np.where(inside, rows * grid[1] + columns, -1).astype(np.int64)
        return index if len(np.unique(index[inside])) == inside.sum() else None


def _steps(dimension: Dimension) -> np.ndarray | None:
    """The row and column of each entry, counted from the first; NaN outside the grid.

    Example:
        >>> _steps((Factor("y", 2, 4), Factor("x", 2))).tolist()
        [[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [4.0, 1.0]]
    """
    tokens = len(dimension) == 1 and dimension[0].role == "t"
    found: list[tuple[float, float]] = []
    for part in dimension[0].parts if tokens else (dimension,):
        if roles_of(part) <= {"p"}:
            found += [(math.nan, math.nan)] * size_of(part)
        elif roles_of(part) <= {"y", "x"} and all(f.stride or f.size == 1 for f in part):
            found += _product(part)
        else:
            return None
    return np.array(found, dtype=float).reshape(-1, 2)


def _product(factors: Sequence[Factor]) -> list[tuple[float, float]]:
    """The rows and columns to which the steps of all factors lead, the last one fastest."""
    found = []
    for steps in product(*(range(f.size) for f in factors)):
        at = {"y": 0, "x": 0}
        for factor, step in zip(factors, steps, strict=True):
            at[factor.role] += step * factor.stride
        found.append((float(at["y"]), float(at["x"])))
    return found


def _extent(factors: Iterable[Factor]) -> tuple[int, int]:
    """The number of rows and columns."""
    each = list(factors)
    height, width = (math.prod(f.size for f in each if f.role == role) for role in "yx")
    return height, width


def _side(total: int, window: int, known: Sequence[int]) -> int:
    """The side of the map without the padding that completes its last window.

    Example:
        >>> _side(21, 7, [15, 15]), _side(14, 14, [7, 14])
        (15, 14)
    """
    padded = (side for side in known if -(-side // window) * window == total)
    return total if total in known else next(padded, total)


def _shift(dissection: Dissection, piece: Piece, attention: Attention) -> tuple[int, int] | None:
    """By how many rows and columns the map is rolled before the attention; None if unclear."""
    sums = {"y": 0, "x": 0}
    for node in ancestors(dissection.flow, attention.node, {piece.entry}):
        if operation(node) == "roll":
            given, axes = arguments(node), dissection.meaning[node].axes
            shifts, dims = map(as_list, (given["shifts"], given["dims"]))
            for shift, dim in zip(shifts, dims, strict=False):
                if len(roles := roles_of(axes[dim]) & {"y", "x", "t"}) != 1 or "t" in roles:
                    return None
                sums[roles.pop()] += int(shift)
        if operation(node) in {"pad", "constant_pad_nd"} and any(arguments(node)["pad"][::2]):
            return None  # rows or columns before the first
    return sums["y"], sums["x"]


def hidden_pairs(
    dissection: Dissection, writer: Writer, attention: Attention, images: int
) -> Tensor | None:
    """The weights at equal logits for ``images`` images; None if there is no mask."""
    node = distribution(dissection, attention)
    if node is not None:
        return _at_zero(dissection, writer, node, images)
    given, flow = arguments(attention.node), dissection.flow
    queries, keys = flow.shape(attention.node, images)[:-1], flow.shape(given["key"], images)[-2]
    seen = None
    if given["is_causal"]:
        seen = torch.ones(queries[-1], keys, device=_device(dissection)).tril()
    elif given["attn_mask"] is not None:
        seen = _at_zero(dissection, writer, given["attn_mask"], images)
        seen = seen.softmax(-1) if seen is not None and seen.is_floating_point() else seen
    return None if seen is None else seen.float().expand(*queries, keys)


def _at_zero(dissection: Dissection, writer: Writer, node: fx.Node, images: int) -> Tensor | None:
    """The value of a node if logits and parameters are 0; None if no constants are left."""
    flow, given, constants = dissection.flow, dict[fx.Node, None](), False
    waiting, seen = [node], set[fx.Node]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        facts = dissection.facts.get(current, set())
        if current in flow.source.parameters or operation(current) in _PRODUCTS or facts & WORK:
            given[current] = None
        else:
            inputs = flow.data_inputs(current)
            constants |= not inputs and is_tensor(current)
            waiting += inputs
    if not constants or flow.source.image in seen:
        return None
    zeros = [
        torch.zeros(flow.shape(n, images), dtype=n.meta["val"].dtype, device=_device(dissection))
        for n in given
    ]
    return writer.part(list(given), node)(*zeros, images)


def _device(dissection: Dissection) -> torch.device:
    tensors = (v for v in dissection.flow.source.constants.values() if isinstance(v, Tensor))
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def hidden(folded: Tensor | None) -> Tensor | None:
    """Where a key is hidden from a query, from weights at equal logits (N, W, H, Q, K)."""
    if folded is None or not bool((nothing := folded[0] < _HIDDEN).any()):
        return None
    return nothing
