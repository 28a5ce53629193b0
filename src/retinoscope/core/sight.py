"""What watchers see: a unit's state for some images, and the rows kept of a whole group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from retinoscope.anatomy.reach import Reach
    from retinoscope.anatomy.replay import State
    from retinoscope.core.anatomy import Anatomy
    from retinoscope.core.unit import Unit


@dataclass(frozen=True)
class Sight:
    """One unit's state for some images during a pass; half precision is converted to float32.

    The images may go through the network in parts to save memory. The state is then concatenated
    here, but only as far as it is requested.
    """

    states: tuple[State, ...]
    """The state of each part, in the order of the images."""
    indices: tuple[int, ...]
    """The indices of the images in the split."""
    labels: Tensor | None = None
    """(N,) in the model's own classes, if the watcher needs labels."""
    subject: str = ""
    """The subject of the state: empty for the main subject, else the name of a further one."""
    number: int = 0
    """The index of the pass, if the network is random at test time."""
    inputs: tuple[Tensor, ...] = ()
    """The images of each part; see :attr:`images`."""

    @cached_property
    def images(self) -> Tensor:
        """The images (N, 3, H, W): cropped and resized, before the network's normalisation."""
        return _joined(list(self.inputs))

    @property
    def unit(self) -> Unit:
        """The unit whose output the state is."""
        return self.states[0].unit

    @property
    def normalised(self) -> bool:
        """Whether the state is the output of a norm over channels."""
        return self.states[0].normalised

    @cached_property
    def maps(self) -> Tensor:
        """The state as maps (N, C, H, W), without prefix tokens."""
        return _joined([state.maps for state in self.states])

    @cached_property
    def prefix(self) -> Tensor | None:
        """Class, distillation and register tokens (N, k, C); None if there are none."""
        tokens = [state.prefix for state in self.states]
        return None if tokens[0] is None else _joined([t for t in tokens if t is not None])

    @cached_property
    def raw(self) -> Tensor:
        """The state as the model stores it; the batch dimension is the model's own."""
        first = self.states[0]
        if len(self.states) == 1 or first.lens is None:
            return _joined([state.raw for state in self.states])
        return first.lens.raw(self.maps, self.prefix)

    @cached_property
    def features(self) -> Tensor:
        """The complete state of each image as one row (N, D); the order of its entries is free."""
        if (lens := self.states[0].lens) is None:
            return self.raw.flatten(1)
        return _joined([lens.rows(state.raw) for state in self.states])

    def tap(self, name: str) -> tuple[Tensor, ...]:
        """Intermediate values inside the unit, by the name of the tap; images are the first axis.

        ``queries``, ``keys``, ``values`` (N, windows, heads, positions, channels) and ``weights``
        (N, windows, heads, queries, keys), one entry per attention in the unit; ``softmax``: the
        same before a learned map mixes heads, so that each query's weights sum to 1; ``branch``:
        what a residual unit adds to its input, as maps (N, C, H, W), one entry. Empty if the unit
        has no such values.
        """
        found = [state.taps.get(name, ()) for state in self.states]
        return tuple(_joined(list(parts)) for parts in zip(*found, strict=True))

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """Where queries and keys are, and what masks hide: one entry per ``tap("softmax")``."""
        return self.states[0].reaches


@dataclass(frozen=True)
class Group:
    """The rows that a watcher has kept of a fixed group of images, for all units together."""

    anatomy: Anatomy
    rows: Mapping[str, Any]
    """By unit: an array, or arrays by name, as ``watch`` returned them."""
    indices: tuple[int, ...]
    """The images of the group that could be read; the others are missing, not replaced."""
    labels: np.ndarray | None = None
    number: int = 0
    """The index of the pass, if the network is random at test time."""
    others: Mapping[str, Group] = field(default_factory=dict)
    """The same for further subjects, by the names that the watcher uses for them."""


def _joined(parts: list[Tensor]) -> Tensor:
    import torch

    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.float() if whole.dtype in (torch.bfloat16, torch.float16) else whole
