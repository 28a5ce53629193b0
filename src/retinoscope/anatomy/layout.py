"""Views a state as maps (N, C, H, W) and prefix tokens, and converts back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retinoscope.anatomy.axes import Axes, Factor, join, roles_of, size_of
from retinoscope.anatomy.graph.flow import BATCH
from retinoscope.core.unit import Grid, Layout


@dataclass(frozen=True)
class Rearrangement:
    """Split a tensor into factors, reorder them, and join them to ``shape``; and back."""

    sizes: tuple[int, ...]
    """The sizes of the factors in storage order; -1 for the batch."""
    order: tuple[int, ...]
    stored: tuple[int, ...]
    """The shape in which the model stores it; -1 for the dimension with the batch."""
    shape: tuple[int, ...]
    """The shape of the view; the batch comes first."""

    def apply(self, raw: Tensor) -> Tensor:
        """From the stored shape to the view, without a copy if memory allows."""
        return raw.reshape(self.sizes).permute(self.order).reshape(-1, *self.shape)

    def undo(self, seen: Tensor) -> Tensor:
        """From the view to the stored shape."""
        inverse = [self.order.index(place) for place in range(len(self.order))]
        moved = [self.sizes[place] for place in self.order]
        return seen.reshape(moved).permute(inverse).reshape(self.stored)


@dataclass(frozen=True)
class Lens:
    """How to view a raw state as maps and prefix tokens."""

    grid: Grid
    channels: int
    of_maps: Rearrangement
    of_prefix: Rearrangement | None = None
    dimension: int = 1
    """The dimension along which prefix tokens come before and after the others."""
    lengths: tuple[int, int, int] = (0, 0, 0)
    """The number of entries before, in, and after the grid along that dimension."""

    def rows(self, raw: Tensor) -> Tensor:
        """All entries of each image's state as one row (N, D), in any order.

        It is the order in which the model stores them if images are stored one after another: then
        nothing is copied.
        """
        beside = self.of_prefix
        if self.of_maps.sizes[0] == -1:
            tokens = math.prod(self.of_maps.shape) + (math.prod(beside.shape) if beside else 0)
            return raw.reshape(-1, tokens)
        maps, prefix = self.maps(raw).flatten(1), self.prefix(raw)
        return maps if prefix is None else torch.cat([prefix.flatten(1), maps], 1)

    def maps(self, raw: Tensor) -> Tensor:
        """The state's maps (N, C, H, W)."""
        if self.of_prefix is not None:
            raw = raw.narrow(self.dimension, self.lengths[0], self.lengths[1])
        return raw if self.grid.layout == "NCHW" else self.of_maps.apply(raw)

    def prefix(self, raw: Tensor) -> Tensor | None:
        """The tokens outside the grid (N, k, C), or None."""
        if self.of_prefix is None:
            return None
        before, _, behind = raw.split(self.lengths, self.dimension)
        return self.of_prefix.apply(torch.cat([before, behind], self.dimension))

    def raw(self, maps: Tensor, prefix: Tensor | None = None) -> Tensor:
        """The state as the model stores it: the inverse of :meth:`maps` and :meth:`prefix`."""
        inside = self.of_maps.undo(maps)
        if prefix is None or self.of_prefix is None:
            return inside
        ends = (self.lengths[0], self.lengths[2])
        before, behind = self.of_prefix.undo(prefix).split(ends, self.dimension)
        return torch.cat([before, inside, behind], self.dimension)


def lens(axes: Axes) -> Lens | None:
    """How to view a state with dimensions ``axes`` as maps; None if it has no grid."""
    places = [place for place, d in enumerate(axes) if len(d) == 1 and d[0].role == "t"]
    if len(places) > 1:
        return None
    if not places:
        return _plain(axes)
    (place,) = places
    parts = axes[place][0].parts
    grids = [part for part in parts if roles_of(part) != {"p"}]
    if len(grids) != 1:
        return None
    at = parts.index(grids[0])
    before = sum(size_of(part) for part in parts[:at])
    behind = sum(size_of(part) for part in parts[at + 1 :])
    seen = _plain((*axes[:place], grids[0], *axes[place + 1 :]))
    if seen is None:
        return None
    beside = _arranged((*axes[:place], (Factor("p", before + behind),), *axes[place + 1 :]))
    return replace(
        seen,
        grid=replace(seen.grid, prefix=beside.shape[0]),
        of_prefix=beside,
        dimension=place,
        lengths=(before, size_of(grids[0]), behind),
    )


def _plain(axes: Axes) -> Lens | None:
    """The lens of a state without tokens outside its grid."""
    factors = [factor for dimension in axes for factor in dimension]
    places = {role: [i for i, f in enumerate(factors) if f.role == role] for role in "ncyx"}
    if sum(map(len, places.values())) != len(factors) or not places["y"] or not places["x"]:
        return None
    for role in "yx":
        places[role].sort(key=lambda i: -factors[i].stride)
        several = len(places[role]) > 1  # a factor of size 1 carries no information
        kept = [factors[i] for i in places[role] if factors[i].size > 1 or not several]
        joined = join(replace(factor, soft=False) for factor in kept)
        if len(joined) > 1 or not all(factor.stride for factor in joined):
            return None  # an incomplete axis, or overlapping neighbourhoods
    channels, height, width = (math.prod(factors[i].size for i in places[r]) for r in "cyx")
    order = tuple(i for role in "ncyx" for i in places[role])
    maps = Rearrangement(_sizes(factors), order, _stored(axes), (channels, height, width))
    return Lens(Grid(_layout(axes), height, width), channels, maps)


def _arranged(axes: Axes) -> Rearrangement:
    """Prefix tokens as (N, k, C), concatenated over all windows of an image."""
    factors = [factor for dimension in axes for factor in dimension]
    batch = [i for i, f in enumerate(factors) if f.role == "n"]
    channels = [i for i, f in enumerate(factors) if f.role == "c"]
    tokens = [i for i, f in enumerate(factors) if f.role not in "nc"]
    count, width = (math.prod(factors[i].size for i in group) for group in (tokens, channels))
    order = (*batch, *tokens, *channels)
    return Rearrangement(_sizes(factors), order, _stored(axes), (count, width))


def _sizes(factors: list[Factor]) -> tuple[int, ...]:
    return tuple(-1 if f.role == "n" else f.size for f in factors)


def _stored(axes: Axes) -> tuple[int, ...]:
    return tuple(-1 if size_of(d) % BATCH == 0 else size_of(d) for d in axes)


def _layout(axes: Axes) -> Layout:
    roles = tuple("".join(factor.role for factor in dimension) for dimension in axes)
    layouts: dict[tuple[str, ...], Layout] = {
        ("n", "c", "y", "x"): "NCHW",
        ("n", "y", "x", "c"): "NHWC",
        ("n", "yx", "c"): "tokens",
        ("n", "c", "yx"): "tokens",
        ("yx", "n", "c"): "tokens",
    }
    return layouts.get(roles, "windows")
