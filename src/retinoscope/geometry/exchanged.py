"""Other weights in a model for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from retinoscope.core.errors import WeightsMismatch
from retinoscope.models.snapshots import differences


@contextmanager
def exchanged(model: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other parameters and buffers; its own come back bit for bit, come what may.

    The values change, not the tensors: whoever shares them (a replay, a wrapper) sees the same.

    Args:
        model: A model; it may be of another precision or on another device than ``state``.
        state: Tensors by the names that ``model.state_dict()`` has for them; all of them.
    """
    own = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if found := differences(own, shapes):
        raise WeightsMismatch(
            f"These weights do not fit {type(model).__name__}: {found}. Give the whole "
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
