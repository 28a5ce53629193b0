"""The heads of an attention: how its output and its weights are divided among them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from retinoscope.anatomy.attentions import Attention
from retinoscope.anatomy.axes import POSITIONS, roles_of
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.flow import arguments
from retinoscope.anatomy.taps import Fold, grouped, has_images, weights_fold


@dataclass(frozen=True)
class Heads:
    """Views the output of an attention as (N, heads, positions, channels), and changes a head."""

    fold: Fold

    @property
    def count(self) -> int:
        """The number of heads."""
        return self.fold.shape[0]

    def seen(self, value: Tensor) -> Tensor:
        """The output by heads (N, heads, positions, channels); windows count as positions."""
        return self.fold.apply(value)

    def replaced(self, value: Tensor, number: int, by: Tensor) -> Tensor:
        """The output with one head replaced by a tensor (N or 1, positions, channels)."""
        changed = self.seen(value).clone()
        changed[:, number] = by
        return self.fold.undo(changed, value.shape)


def heads_of(dissection: Dissection, attention: Attention) -> Heads | None:
    """How to view the output of an attention by heads; None if the graph does not show them.

    They are shown if the output has as many groups of channels as the weights have heads.
    """
    axes = dissection.meaning[attention.node].axes
    channels = [place for place, d in enumerate(axes) if roles_of(d) == {"c"}]
    known = weights_fold(dissection, attention)
    if not channels or known is None:
        return None
    factors = [(place, factor) for place, dimension in enumerate(axes) for factor in dimension]
    groups: list[list[int]] = [[], [], [], []]
    for index, (place, factor) in enumerate(factors):
        if factor.role == "n":
            groups[0].append(index)
        elif factor.roles() & POSITIONS:
            groups[2].append(index)
        elif factor.role == "c":
            groups[3 if place == channels[-1] else 1].append(index)
        else:
            return None
    if not has_images(dissection, groups[0]):
        return None
    fold = grouped(factors, groups)
    return Heads(fold) if known.shape[1] == fold.shape[0] else None


def weights_shape(dissection: Dissection, attention: Attention) -> tuple[int, ...] | None:
    """Windows, heads, queries and keys of the tap ``weights``; None if there is no such tap."""
    fold = weights_fold(dissection, attention)
    return None if fold is None else fold.shape


def heads_of_weights(dissection: Dissection, attention: Attention, images: int) -> Tensor | None:
    """The head of each entry of an attention's weights as the model stores them, from 0 on.

    None if heads cannot be told apart from positions.
    """
    fold = weights_fold(dissection, attention)
    if fold is None:
        return None
    shape = dissection.flow.shape
    if attention.weights is not None:
        stored = shape(attention.weights, images)
    else:
        query, key = (shape(arguments(attention.node)[name], images) for name in ("query", "key"))
        stored = (*query[:-1], key[-2])
    places = fold.apply(torch.arange(math.prod(stored)).reshape(stored))
    heads = torch.empty(math.prod(stored), dtype=torch.float64)
    heads[places] = torch.arange(places.shape[2], dtype=torch.float64)[:, None, None]
    return heads.reshape(stored)
