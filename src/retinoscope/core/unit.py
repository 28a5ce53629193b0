"""The parts of a backbone: kinds, grids and units, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Layout = Literal["NCHW", "NHWC", "tokens", "windows"]


class Kind(StrEnum):
    """What a unit does to the feature maps that pass through it."""

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
    """How to view a state as maps of ``height`` × ``width`` positions, without ``prefix`` tokens.

    ``layout`` is the storage format of the model: ``windows`` is any format in which positions are
    spread over several dimensions, such as the partitions of Swin or MobileViT.
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
    """One unit of a backbone: names and numbers, never a module or a graph node."""

    name: str
    """Unique; the longest common module path of the operations that determine the kind."""
    kind: Kind
    stage: int | None
    """Starts at 1 and increases where the resolution changes; None for stem and head."""
    depth: int
    """Index in the chain of units; the stem is 0. For an inner unit, the index in its own chain."""
    residual: bool
    """Whether its input is also an operand of its output, so that it can be removed."""
    subsamples: bool
    """Whether its output has fewer positions than its input."""
    grid: Grid | None
    """How to view its output as maps; None if it has no positions."""
    channels: int
    parameters: int
    """Number of learned parameters; a tensor shared by several units counts at its first use."""
    flops: int
    """FLOPs per image; a multiply-add counts as two."""
    module: str | None = None
    """Path of the module whose output is the branch, or None; surgeries replace this module."""
    inner: tuple[Unit, ...] = ()
    """The residual units inside its branch, if there are any."""
    note: str = ""
    """What was merged into this unit, and why, if the graph cannot separate it."""
