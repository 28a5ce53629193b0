"""The facts about operations that determine the kinds of units."""

from __future__ import annotations

from enum import StrEnum


class Fact(StrEnum):
    """What one operation does."""

    ATTENTION = "normalised mixing over positions"
    CHANNEL_ATTENTION = "normalised mixing over channels"
    TOKEN_MIXING = "learned mixing of positions, channel by channel"
    CONV = "learned mixing of neighbouring positions and channels"
    LINEAR = "learned mixing of channels at each position"
    POOL = "fixed mixing of neighbouring positions"
    RESAMPLE = "change of resolution"
    OPAQUE = "an unknown operation"
    REDUCE = "a mean, sum or extreme over a dimension"
    NONLINEAR = "a pointwise non-linearity"
    NORM = "a normalisation"
    POINTWISE = "pointwise arithmetic"
    LAYOUT = "moving entries about"
    PAD = "adding rows and columns around a map"


WORK = {
    Fact.ATTENTION, Fact.CHANNEL_ATTENTION, Fact.TOKEN_MIXING, Fact.CONV, Fact.LINEAR, Fact.POOL,
    Fact.RESAMPLE, Fact.OPAQUE,
}  # fmt: skip
"""Facts that make a unit; operations with only other facts belong to an adjacent unit."""
