"""What a backbone is made of: kinds, grids and units, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Layout = Literal["NCHW", "NHWC", "tokens", "windows"]


class Kind(StrEnum):
    """What a unit does to the maps that pass through it."""

    STEM = "stem"
    CONV = "conv"
    ATTENTION = "attention"
    CHANNEL_ATTENTION = "channel_attention"
    MLP = "mlp"
    TOKEN_MLP = "token_mlp"
    POOL = "pool"
    OTHER = "other"
    HEAD = "head"


@dataclass(frozen=True)
class Grid:
    """How a state is seen as maps of ``height`` × ``width`` positions, ``prefix`` tokens apart.

    ``layout`` says how the model itself stores it: ``windows`` is any storage in which the
    positions are spread over several dimensions, such as Swin's or MobileViT's partitions.
    """

    layout: Layout
    height: int
    width: int
    prefix: int = 0

    @property
    def resolution(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    def __str__(self) -> str:
        return f"{self.height}×{self.width}" + (f"+{self.prefix}" if self.prefix else "")


@dataclass(frozen=True)
class Unit:
    """One unit of a backbone: a name and numbers, never a module or a graph node."""

    name: str
    """Unique; the deepest module path common to what decides the kind."""
    kind: Kind
    stage: int | None
    """From 1, raised where the resolution changes; None for stem and head."""
    depth: int
    """Place in the chain of units; the stem is 0. An inner unit's place in its own chain."""
    residual: bool
    """Whether its input is also an operand of its output, so that it can be removed."""
    subsamples: bool
    """Whether its output has fewer positions than its input."""
    grid: Grid | None
    """How its output is seen as maps; None where it has no positions."""
    channels: int
    parameters: int
    """Learned numbers used here; a tensor shared by several units counts where it is used first."""
    flops: int
    """Of one image; a multiplication and an addition are two."""
    module: str | None = None
    """Path of the module whose output is the branch, or None; what surgery operates on."""
    inner: tuple[Unit, ...] = ()
    """The residual units that its branch is made of, if it is."""
    note: str = ""
    """What was merged into this unit, and why, where the graph cannot tell it apart."""
