"""Parts of the Hessian: the parameters of a unit, a stage or a kind, and their trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from retinoscope.core.subject import Subject
from retinoscope.core.unit import Unit
from retinoscope.geometry.curvature import Learned
from retinoscope.numerics.krylov import Eigenpairs

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


def traces(found: Eigenpairs, learned: Learned, units: Sequence[Unit]) -> Mapping[str, float]:
    """An estimate of the trace of each unit's block.

    Of a vector v that is uniform on the sphere, n · v · Hv estimates the trace without bias
    (Hutchinson, 1990), and the coordinates of a block that of the block. The eigenvalues that were
    found are counted as they are, and v serves for what is left beside them, which varies far less.

    Args:
        found: With the start v and its image Hv.
        learned: The parameters that the coordinates belong to.
        units: The unit of each parameter.
    """
    sizes = [tensor.numel() for tensor in learned.tensors]
    rest, image = found.start.cpu().double(), found.image.cpu().double()
    diagonal = torch.zeros_like(rest)
    for value, vector, sure in zip(found.values, found.vectors, found.converged, strict=True):
        if sure:
            vector = vector.cpu().double()
            share = found.start.cpu().double() @ vector
            rest, image = rest - share * vector, image - value * share * vector
            diagonal += value * vector.square()
    left = learned.size - int(found.converged.sum())
    if left:
        diagonal += rest * image * (left / rest.square().sum())
    sums = torch.stack([part.sum() for part in diagonal.split(sizes)])
    shares: dict[str, float] = {}
    for unit, value in zip(units, sums.tolist(), strict=True):
        shares[unit.name] = shares.get(unit.name, 0.0) + value
    return shares
