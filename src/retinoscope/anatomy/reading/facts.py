"""What one operation does: the facts that decide kinds."""

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
    OPAQUE = "something not known here"
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
"""Facts that make a unit; all others belong to the unit beside them."""
