"""The meaning of each dimension of a tensor, tracked through reshapes without guessing.

A dimension is a product of **factors**, outermost first. A factor has a role (batch ``n``, channel
``c``, vertical ``y`` or horizontal ``x`` position, ``p`` tokens outside the grid, ``b`` stacked
branches, ``?`` unknown), a size, and the stride with which it steps along its axis. Dividing a map
of 56 rows into windows of 7 splits ``y56`` into ``y8`` of stride 7 and ``y7`` of stride 1; merging
the windows joins them again. A grid is therefore known exactly, wherever its factors are: in the
batch, in one dimension, or after a class token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

POSITIONS = frozenset("yxpt")


@dataclass(frozen=True)
class Factor:
    """One factor of a dimension."""

    role: str
    size: int
    stride: int = 1
    """Steps along its own axis; 0 for overlapping neighbourhoods, which cannot be joined."""
    soft: bool = False
    """Whether the values along it are normalised weights (the output of a softmax)."""
    parts: tuple[Dimension, ...] = ()
    """For role ``t``: the parts that were concatenated along this dimension."""

    def roles(self) -> set[str]:
        """Its role, or those of its parts."""
        return {self.role}.union(*(f.roles() for part in self.parts for f in part))


Dimension = tuple[Factor, ...]
Axes = tuple[Dimension, ...]


def unknown(size: int) -> Dimension:
    """A dimension with a known size but unknown meaning."""
    return single("?", size)


def single(role: str, size: int) -> Dimension:
    """A dimension of one factor; a dimension of size 1 has none."""
    return (Factor(role, size),) if size != 1 else ()


def position(role: str, size: int) -> Dimension:
    """Rows or columns; kept even if there is only one, since it is still a map."""
    return (Factor(role, size),)


def size_of(dimension: Dimension) -> int:
    """The size of the dimension."""
    return math.prod(factor.size for factor in dimension)


def roles_of(dimension: Iterable[Factor]) -> set[str]:
    """All roles that occur in a dimension."""
    return set().union(*(factor.roles() for factor in dimension))


def is_soft(dimension: Dimension) -> bool:
    """Whether the dimension, or a part of it, contains normalised weights."""
    return any(factor.soft for factor in dimension)


def soften(dimension: Dimension) -> Dimension:
    """The same dimension after a softmax along it."""
    return tuple(replace(factor, soft=True) for factor in dimension)


def join(dimension: Iterable[Factor]) -> Dimension:
    """Join adjacent factors that were split from one factor.

    Example:
        >>> join([Factor("y", 8, 7), Factor("y", 7)])
        (Factor(role='y', size=56, stride=1, soft=False, parts=()),)
    """
    joined: list[Factor] = []
    for factor in dimension:
        last = joined[-1] if joined else None
        fits = (
            last and last.role == factor.role != "t" and last.stride == factor.size * factor.stride
        )
        if last and fits and last.stride:
            joined[-1] = replace(
                factor, size=last.size * factor.size, soft=last.soft or factor.soft
            )
        else:
            joined.append(factor)
    return tuple(joined)


def reshape(axes: Axes, shape: Sequence[int]) -> Axes:
    """The meaning of the dimensions after a view as ``shape``.

    Factors are split and joined as the sizes require. If that is impossible, the rest becomes
    unknown.

    Example:
        >>> maps = (single("n", 2), single("c", 3), position("y", 4), position("x", 6))
        >>> [sorted(roles_of(d)) for d in reshape(maps, (2, 3, 24))]
        [['n'], ['c'], ['x', 'y']]
    """
    factors = [factor for dimension in axes for factor in dimension]
    shaped: list[Dimension] = []
    for index, size in enumerate(shape):
        taken = _take(factors, size)
        if taken is None:
            return (*shaped, *(unknown(s) for s in shape[index:]))
        shaped.append(join(taken))
    if shaped and factors and roles_of(shaped[-1]) & POSITIONS:
        shaped[-1] = join([*shaped[-1], *factors])  # a single column without a dimension of its own
    return tuple(shaped)


def _take(factors: list[Factor], size: int) -> list[Factor] | None:
    """Take factors of total size ``size`` from the front of the list; may split the last one."""
    taken: list[Factor] = []
    need = size
    while need > 1:
        if not factors:
            return None
        first = factors.pop(0)
        if need % first.size == 0:
            taken.append(first)
            need //= first.size
        elif first.size % need == 0 and first.role != "t":
            rest = first.size // need
            taken.append(replace(first, size=need, stride=first.stride * rest))
            factors.insert(0, replace(first, size=rest))
            need = 1
        else:
            return None
    if size == 1 and factors and factors[0].size == 1:
        taken.append(factors.pop(0))  # a map of one row keeps its row
    return taken


def concatenate(pieces: Sequence[Dimension]) -> Dimension:
    """The dimension along which ``pieces`` were concatenated.

    Tokens next to a grid become a ``t`` factor that stores its parts; concatenated rows are rows;
    everything else is channels, or unknown.
    """
    size = sum(size_of(piece) for piece in pieces)
    parts = tuple(part for piece in pieces for part in _parts(piece))
    roles = roles_of(factor for piece in pieces for factor in piece) - {"?"}
    if roles == {"c"} or roles in ({"y"}, {"x"}):
        return single(next(iter(roles)), size)
    if roles & {"y", "x"}:
        beside = tuple(part if roles_of(part) & {"y", "x"} else single_part(part) for part in parts)
        return (Factor("t", size, parts=_merge_beside(beside)),)
    if roles == {"p"}:
        return position("p", size)
    return single("c", size) if "c" in roles else unknown(size)


def single_part(part: Dimension) -> Dimension:
    """Tokens outside a grid."""
    return position("p", size_of(part))


def _parts(dimension: Dimension) -> tuple[Dimension, ...]:
    if len(dimension) == 1 and dimension[0].role == "t":
        return dimension[0].parts
    return (dimension,)


def _merge_beside(parts: Iterable[Dimension]) -> tuple[Dimension, ...]:
    merged: list[Dimension] = []
    for part in parts:
        if merged and roles_of(part) == roles_of(merged[-1]) == {"p"}:
            merged[-1] = position("p", size_of(merged[-1]) + size_of(part))
        else:
            merged.append(part)
    return tuple(merged)


def cut(dimension: Dimension, start: int, stop: int, step: int = 1) -> Dimension:
    """The entries ``start:stop:step`` of a dimension."""
    total = size_of(dimension)
    size = max(0, -(-(stop - start) // step))
    if size == total:
        return dimension
    if len(dimension) == 1 and dimension[0].role == "t" and step == 1:
        return _cut_tokens(dimension[0].parts, start, stop)
    roles = roles_of(dimension)
    if len(roles) == 1 and (role := next(iter(roles))) in "ncyxp":
        if role in "yx":
            return (Factor(role, size, dimension[-1].stride * step),)
        return position(role, size) if role == "p" else single(role, size)
    return unknown(size)


def finest_step(axes: Iterable[Dimension], role: str) -> int:
    """The smallest stride along an axis: more than 1 if only some rows or columns are left."""
    strides = [f.stride for dimension in axes for f in dimension if f.role == role]
    return min(strides, default=1)


def rebase(axes: Axes) -> Axes:
    """Renumber the remaining rows and columns after those between them were removed."""
    steps = {role: finest_step(axes, role) or 1 for role in "yx"}
    return tuple(
        tuple(replace(f, stride=f.stride // steps.get(f.role, 1)) for f in dimension)
        for dimension in axes
    )


def _cut_tokens(parts: Sequence[Dimension], start: int, stop: int) -> Dimension:
    kept, begin = [], 0
    for part in parts:
        end = begin + size_of(part)
        low, high = max(start, begin) - begin, min(stop, end) - begin
        if low < high:
            kept.append(cut(part, low, high))
        begin = end
    return kept[0] if len(kept) == 1 else concatenate(kept)
