"""Seeing a state as maps (N, C, H, W) with its prefix tokens apart, and back again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retinoscope.anatomy.axes import Axes, Dimension, join, roles_of, size_of
from retinoscope.anatomy.flow import BATCH
from retinoscope.core.unit import Grid, Layout


@dataclass(frozen=True)
class Lens:
    """How a raw state is seen as maps: split into factors, reorder them, join them again."""

    grid: Grid
    channels: int
    sizes: tuple[int, ...]
    """Of the factors in the order in which the model stores them; -1 for the batch."""
    order: tuple[int, ...]
    """The places of the batch, channel, row and column factors, in this order."""
    shape: tuple[int, ...]
    """Of the raw state without its prefix tokens; -1 for the dimension that holds the batch."""
    token_dimension: int | None = None
    before: int = 0
    """Tokens that stand before the grid; the other prefix tokens stand behind it."""

    def maps(self, raw: Tensor) -> Tensor:
        """The state's maps (N, C, H, W): a view where memory allows, else a copy."""
        if self.token_dimension is not None:
            raw = raw.narrow(self.token_dimension, self.before, self.grid.height * self.grid.width)
        if self.grid.layout == "NCHW":
            return raw
        return (
            raw.reshape(self.sizes)
            .permute(self.order)
            .reshape(-1, self.channels, *self.grid.resolution)
        )

    def prefix(self, raw: Tensor) -> Tensor | None:
        """The tokens beside the grid (N, k, C), or None."""
        if self.token_dimension is None or not self.grid.prefix:
            return None
        end = self.before + self.grid.height * self.grid.width
        behind = self.grid.prefix - self.before
        tokens = raw.narrow(self.token_dimension, 0, self.before)
        if behind:
            tokens = torch.cat(
                [tokens, raw.narrow(self.token_dimension, end, behind)], self.token_dimension
            )
        return tokens if self.token_dimension == 1 else tokens.transpose(1, 2)

    def raw(self, maps: Tensor, prefix: Tensor | None = None) -> Tensor:
        """The state as the model stores it: the inverse of :meth:`maps` and :meth:`prefix`."""
        moved = [self.sizes[place] for place in self.order]
        inverse = [self.order.index(place) for place in range(len(self.order))]
        raw = maps.reshape(moved).permute(inverse).reshape(self.shape)
        if prefix is None or self.token_dimension is None:
            return raw
        if self.token_dimension != 1:
            prefix = prefix.transpose(1, 2)
        ends = prefix.split([self.before, self.grid.prefix - self.before], self.token_dimension)
        return torch.cat([ends[0], raw, ends[1]], self.token_dimension)


def lens(axes: Axes) -> Lens | None:
    """How to see a state whose dimensions mean ``axes`` as maps; None where it has no grid."""
    token_dimension, before, beside = None, 0, 0
    dimensions = list(axes)
    for place, dimension in enumerate(axes):
        if len(dimension) == 1 and dimension[0].role == "t":
            grids = [part for part in dimension[0].parts if roles_of(part) != {"p"}]
            if len(grids) != 1 or token_dimension is not None:
                return None
            token_dimension, dimensions[place] = place, grids[0]
            at = dimension[0].parts.index(grids[0])
            before = sum(size_of(part) for part in dimension[0].parts[:at])
            beside = size_of(dimension) - size_of(grids[0])
    factors = [factor for dimension in dimensions for factor in dimension]
    places = {role: [i for i, f in enumerate(factors) if f.role == role] for role in "ncyx"}
    if sum(map(len, places.values())) != len(factors) or not places["y"] or not places["x"]:
        return None
    for role in "yx":
        places[role].sort(key=lambda i: -factors[i].stride)
        joined = join(replace(factors[i], soft=False) for i in places[role])
        if len(joined) != 1 or not joined[0].stride:
            return None  # an incomplete axis, or overlapping neighbourhoods
    height, width = (math.prod(factors[i].size for i in places[role]) for role in "yx")
    grid = Grid(_layout(dimensions, token_dimension), height, width, beside)
    return Lens(
        grid=grid,
        channels=math.prod(factors[i].size for i in places["c"]),
        sizes=tuple(-1 if f.role == "n" else f.size for f in factors),
        order=tuple(i for role in "ncyx" for i in places[role]),
        shape=tuple(-1 if size_of(d) % BATCH == 0 else size_of(d) for d in dimensions),
        token_dimension=token_dimension,
        before=before,
    )


def _layout(dimensions: list[Dimension], token_dimension: int | None) -> Layout:
    roles = ["".join(dict.fromkeys(f.role for f in d)) for d in dimensions]
    layouts: dict[tuple[str, ...], Layout] = {
        ("n", "c", "y", "x"): "NCHW",
        ("n", "y", "x", "c"): "NHWC",
        ("n", "yx", "c"): "tokens",
        ("n", "c", "yx"): "tokens",
    }
    single = all(len(d) <= len(set(f.role for f in d)) for d in dimensions)
    if token_dimension is not None and tuple(roles) not in layouts:
        return "tokens" if len(dimensions) == 3 else "windows"
    return layouts.get(tuple(roles), "windows") if single else "windows"
