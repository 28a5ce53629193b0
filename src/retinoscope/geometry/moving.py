"""Temporarily moves the weights of a network along directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

Direction = Mapping[str, Tensor]
"""Tensors by name; tensors without an entry stay fixed."""


class Moving:
    """A context in which tensors move from their values along directions.

    After it, their values are restored exactly, even after an error. A tensor with several names
    moves once, along the direction of whichever name has one.
    """

    def __init__(self, tensors: Mapping[str, Tensor], directions: Sequence[Direction]) -> None:
        first: dict[tuple[object, ...], str] = {}
        called = {name: first.setdefault(_memory(t), name) for name, t in tensors.items()}
        self._directions = [
            {called[name]: way for name, way in direction.items()} for direction in directions
        ]
        moved = dict.fromkeys(name for direction in self._directions for name in direction)
        self._tensors = {name: tensors[name] for name in moved}
        self._base = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    def __enter__(self) -> Moving:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.to(*[0.0] * len(self._directions))

    @torch.no_grad()
    def to(self, *coordinates: float) -> None:
        """Set the tensors to their base values plus each direction times its coordinate."""
        for name, tensor in self._tensors.items():
            tensor.copy_(self._base[name])
            for along, direction in zip(coordinates, self._directions, strict=True):
                # Nothing is added for a coordinate of 0: 0 · ∞ is NaN, and −0 + 0 is not −0.
                if along != 0 and name in direction:
                    tensor.add_(direction[name].to(tensor), alpha=along)


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """A key for the memory of a tensor; unique to the tensor if it is empty."""
    if not tensor.numel():
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()


def squares(tensors: Mapping[str, Tensor], directions: Sequence[Direction]) -> np.ndarray:
    """Inner products of each tensor and its directions, float64 (T, 1 + D, 1 + D).

    They determine the norm of every tensor at any coordinates.
    """
    found = np.zeros((len(tensors), 1 + len(directions), 1 + len(directions)))
    for index, (name, tensor) in enumerate(tensors.items()):
        zero = torch.zeros_like(tensor)
        parts = [tensor, *(direction.get(name, zero).to(tensor) for direction in directions)]
        flat = torch.stack([part.detach().flatten().cpu().double() for part in parts])
        found[index] = (flat @ flat.T).numpy()
    return found


def squared_norms(products: np.ndarray, *coordinates: float) -> np.ndarray:
    """The squared norm of each tensor at some coordinates, (T,), from :func:`squares`.

    Example:
        >>> import torch
        >>> w, d = {"a": torch.tensor([3.0, 0.0])}, {"a": torch.tensor([0.0, 2.0])}
        >>> squared_norms(squares(w, [d]), 2.0).tolist()
        [25.0]
    """
    place = np.array([1.0, *coordinates])
    return np.maximum(np.einsum("tij,i,j->t", products, place, place), 0.0)
