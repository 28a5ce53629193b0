"""Parts of the Hessian: the parameters of a unit, a stage or a kind, and their trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from retinoscope.core.subject import Subject
from retinoscope.core.unit import Unit
from retinoscope.geometry.curvature import Learned

By = Literal["kind", "stage", "unit"]


def owners(subject: Subject, learned: Learned) -> list[Unit]:
    """The unit that each parameter belongs to: the first that uses it."""
    units = {unit.name: unit for unit in subject.anatomy}
    by_tensor = {
        id(tensor): units[name]
        for name, tensors in subject.replay.parameters().items()
        for tensor in tensors
    }
    # What the graph does not know but gets a gradient all the same comes before all units.
    return [by_tensor.get(id(tensor), subject.anatomy.units[0]) for tensor in learned.tensors]


def blocks(units: Sequence[Unit], by: By) -> dict[str, list[int]]:
    """The places of the parameters of each block, by the block's name.

    Args:
        units: The unit of each parameter.
        by: What makes a block. Stem and head are stages of their own.
    """
    found: dict[str, list[int]] = {}
    for place, unit in enumerate(units):
        found.setdefault(_called(unit, by), []).append(place)
    return found


def _called(unit: Unit, by: By) -> str:
    if by == "unit":
        return unit.name
    if by == "kind" or unit.stage is None:
        return str(unit.kind).replace("_", " ")
    return f"stage {unit.stage}"


def traces(
    start: Tensor, image: Tensor, learned: Learned, units: Sequence[Unit]
) -> Mapping[str, float]:
    """An estimate of the trace of each unit's block.

    Of a vector v that is uniform on the sphere, n · v · Hv estimates the trace without bias
    (Hutchinson, 1990), and the coordinates of a block that of the block.

    Args:
        start: v, of length 1.
        image: Hv.
        learned: The parameters that the coordinates belong to.
        units: The unit of each parameter.
    """
    sizes = [tensor.numel() for tensor in learned.tensors]
    products = (start.cpu().double() * image.cpu().double()).split(sizes)
    sums = torch.stack([product.sum() for product in products]) * learned.size
    found: dict[str, float] = {}
    for unit, value in zip(units, sums.tolist(), strict=True):
        found[unit.name] = found.get(unit.name, 0.0) + value
    return found
