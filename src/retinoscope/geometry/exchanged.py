"""Temporarily replaces the weights of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from retinoscope.core.errors import WeightsMismatch
from retinoscope.models.snapshots import differences


@contextmanager
def exchanged(model: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """A context in which the model has other parameters and buffers; it restores its own exactly.

    The values change, not the tensors, so that objects that share them (a replay, a wrapper) see
    the same values.

    Args:
        model: A model; its precision and device may differ from those of ``state``.
        state: All tensors, by their names in ``model.state_dict()``.
    """
    own = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if found := differences(own, shapes):
        raise WeightsMismatch(
            f"These weights do not fit {type(model).__name__}: {found}. Pass the complete "
            "state_dict of a model of the same architecture."
        )
    kept = {name: tensor.clone() for name, tensor in own.items()}
    try:
        _copy(state, own)
        yield
    finally:
        _copy(kept, own)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
