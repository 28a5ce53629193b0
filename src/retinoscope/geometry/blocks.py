"""Diagonal blocks of the Hessian: the parameters of a unit, a stage or a kind, and their trace."""

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
    """The unit that each parameter belongs to: the first unit that uses it."""
    units = {unit.name: unit for unit in subject.anatomy}
    by_tensor = {
        id(tensor): units[name]
        for name, tensors in subject.replay.parameters().items()
        for tensor in tensors
    }
    # Parameters that are not in the graph but get a gradient are assigned to the first unit.
    return [by_tensor.get(id(tensor), subject.anatomy.units[0]) for tensor in learned.tensors]


def blocks(units: Sequence[Unit], by: By) -> dict[str, list[int]]:
    """The indices of the parameters of each block, by the block's name.

    Args:
        units: The unit of each parameter.
        by: How parameters are grouped into blocks. Stem and head are separate stages.
    """
    found: dict[str, list[int]] = {}
    for index, unit in enumerate(units):
        found.setdefault(_called(unit, by), []).append(index)
    return found


def _called(unit: Unit, by: By) -> str:
    if by == "unit":
        return unit.name
    if by == "kind" or unit.stage is None:
        return str(unit.kind).replace("_", " ")
    return f"stage {unit.stage}"


def traces(found: Eigenpairs, learned: Learned, units: Sequence[Unit]) -> Mapping[str, float]:
    """Estimate the trace of each unit's block.

    For a vector v that is uniform on the sphere, n · v · Hv is an unbiased estimate of the trace
    (Hutchinson, 1990); restricted to the coordinates of a block, it estimates the block's trace.
    The computed eigenvalues are counted exactly, and v is used only for the remaining part, whose
    variance is much smaller.

    Args:
        found: The eigenpairs, including the start vector v and its product Hv.
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
