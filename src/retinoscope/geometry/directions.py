"""Directions in weight space along which a loss is evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from retinoscope.core.errors import WeightsMismatch
from retinoscope.core.subject import Subject
from retinoscope.geometry.moving import Direction

Scale = Literal["filter", "paper", "none"]
_TINY = 1e-10


def movable(subject: Subject) -> dict[str, Tensor]:
    """The weights of linear maps by name, which random directions move.

    Norms, biases, layer scales, tokens and position tables stay fixed (Li et al., 2018), and so do
    tensors with a single element per output. The roles are read from the graph, not from names.
    """
    axes = output_axes(subject)
    return {
        name: tensor
        for name, tensor in subject.backbone.named_parameters()
        if name in axes and tensor.ndim > 1 and tensor.numel() > tensor.shape[axes[name]]
    }


def output_axes(subject: Subject) -> dict[str, int]:
    """The axis of each linear map's weight along which its filters (outputs) are counted."""
    maps = {id(tensor): axis for tensor, axis in subject.replay.multiplied().items()}
    named = subject.backbone.named_parameters()
    return {name: maps[id(tensor)] for name, tensor in named if id(tensor) in maps}


def random_direction(
    weights: Mapping[str, Tensor], scale: Scale, seed: int, axes: Mapping[str, int] | None = None
) -> dict[str, Tensor]:
    """A Gaussian direction, the same on every device, scaled like the weights.

    Args:
        weights: Tensors by name.
        scale: See :func:`scaled`.
        seed: Random seed.
        axes: The axis of each weight that counts filters. Default: the first.
    """
    draws = torch.Generator().manual_seed(seed)
    axes = axes or {}
    return {
        name: scaled(
            torch.randn(weight.shape, generator=draws), weight.detach(), scale, axes.get(name, 0)
        )
        for name, weight in weights.items()
    }


def scaled(direction: Tensor, weight: Tensor, scale: Scale, axis: int = 0) -> Tensor:
    """A direction scaled like a weight.

    Args:
        direction: A tensor of the weight's shape.
        weight: The weight of a linear map.
        scale: ``filter`` gives each filter the norm of the weight's (Li et al., 2018); ``paper``
            does so across the filters, for each of the other indices, as the code of Park & Kim
            does; ``none`` does not scale.
        axis: The axis that counts filters (outputs).

    Example:
        >>> weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> scaled(torch.ones(2, 2), weight, "filter").norm(dim=1).tolist()
        [5.0, 0.0]
    """
    if scale == "none":
        return direction.to(weight)
    others = tuple(index for index in range(weight.ndim) if index != axis)
    dimensions = others if scale == "filter" else (0,)
    wanted, own = (
        torch.linalg.vector_norm(tensor.cpu().double(), dim=dimensions, keepdim=True)
        for tensor in (weight, direction)
    )
    return (direction.cpu().double() * (wanted / own.clamp_min(_TINY))).to(weight)


def towards(subject: Subject, other: Subject) -> dict[str, Tensor]:
    """The direction from a subject's parameters and statistics to those of another."""
    own, theirs = subject.backbone.state_dict(), other.backbone.state_dict()
    unlike = [n for n in {**own, **theirs} if n not in own or n not in theirs]
    unlike += [n for n in own.keys() & theirs.keys() if own[n].shape != theirs[n].shape]
    if unlike:
        listed = ", ".join(sorted(unlike)[:5]) + ", …" * (len(unlike) > 5)
        raise WeightsMismatch(
            f"There is no direction from {subject.name} to {other.name}: their architectures "
            f"differ. {len(unlike)} tensors exist in only one of them or have another shape: "
            f"{listed}. Name other weights of the same model, such as a snapshot of its training."
        )
    return {
        name: theirs[name].to(tensor) - tensor
        for name, tensor in own.items()
        if tensor.is_floating_point()
    }


def shaped(subject: Subject, names: Sequence[str], vectors: np.ndarray) -> list[Direction]:
    """Flat vectors (D, n) as directions: tensors by parameter name."""
    named = dict(subject.backbone.named_parameters())
    tensors = [named[name] for name in names]
    directions: list[Direction] = []
    for flat in torch.from_numpy(vectors):
        parts = flat.split([tensor.numel() for tensor in tensors])
        directions.append(
            {n: part.view_as(t) for n, t, part in zip(names, tensors, parts, strict=True)}
        )
    return directions
