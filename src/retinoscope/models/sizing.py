"""Find the image size of a network that does not state it, by trying the usual sizes.

Nothing is computed: the network runs on tensors that have a shape but no data. These rules are
applied, the strongest evidence first:

- A flattened map or a position table fits a single size: the only size that works is used.
- A position table that is only read from its beginning fits all sizes up to a limit: the largest
  size that works is used.
- A position table that is resampled for other sizes is kept at its own size: that size is used.
- Networks for small images keep their resolution. If, at 224 pixels, the last maps would be at most
  four times smaller than the image (eight times if the first convolution has no stride), 32 pixels
  are assumed. In networks for photographs, they are 16 or 32 times smaller.
- Otherwise 224 pixels are assumed, as for most published networks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

USUAL = (224, 32, 299, 256, 384, 64, 28, 96, 128, 160, 192, 240, 288, 320, 336, 448, 512, 518)
"""Image sizes that networks are usually made for, the most frequent first."""
_FIRST, _SMALL, _LARGE = 224, 32, 512
_GRID = 32
"""Patch sizes and strides divide its multiples, so only these sizes show where a table ends."""
_KEPT, _KEPT_FROM_FIRST = 4, 8
_UNTRIED = "assumed: the network could not be tried at the usual sizes"


class Finding(NamedTuple):
    """An image size, and how it was found."""

    size: tuple[int, int]
    how: str


@dataclass
class Look:
    """What a network does with images of one size."""

    side: int
    first_stride: int = 0
    """Stride of the first convolution; 0 if there is none."""
    last: int = 0
    """Longer side of the last convolution's output that has more than one position."""
    resampled: int = 0
    """Number of times that a map or a table is resampled to another size."""

    @property
    def small(self) -> bool:
        """Whether the network keeps its resolution, as networks for small images do."""
        factor = _KEPT_FROM_FIRST if self.first_stride == 1 else _KEPT
        return self.last * factor >= self.side


def find_size(model: nn.Module, channels: int) -> Finding:
    """Return the image size that a network was most likely made for, and how it was found."""
    tried = _Trials(model, channels)
    first, large = tried[_FIRST], tried[_LARGE]
    if first is not None and large is not None and not first.resampled + large.resampled:
        return _unbound(first, tried)
    every = {side: look for side in USUAL if (look := tried[side]) is not None}
    # A single position broadcasts to any table, so it proves nothing.
    works = {side: look for side, look in every.items() if look.last} or every
    if not works:
        return _found(_FIRST, _UNTRIED)
    if len(works) == 1:
        return _found(
            next(iter(works)), "read from the network: of the usual sizes it takes no other"
        )
    if (own := _end_of_table(every)) is not None:
        return _found(own, "read from the network: of the usual sizes it takes no larger")
    if (own := _not_resampled(works)) is not None:
        return _found(
            own, "read from the network: at the other usual sizes it resamples its tables"
        )
    if first is not None:
        return _unbound(first, tried)
    others = " and ".join(map(str, [*works][:3]))
    return _found(next(iter(works)), f"assumed: it takes {others} px, not {_FIRST}")


def _unbound(first: Look, tried: _Trials) -> Finding:
    """Return the size of a network that works at any size, or at many."""
    if first.small and tried[_SMALL] is not None:
        return _found(
            _SMALL,
            f"assumed: at {_FIRST} px its last map would be {first.last}×{first.last}, which only "
            "networks for small images have",
        )
    return _found(_FIRST, "assumed: nothing in the network fixes it")


def _end_of_table(works: Mapping[int, Look]) -> int | None:
    """Return the largest size that works, if all smaller ones work and no larger one does."""
    grid = sorted(side for side in USUAL if side % _GRID == 0)
    taken = [side for side in grid if side in works]
    ends = bool(taken) and taken == grid[: len(taken)] and len(taken) < len(grid)
    return taken[-1] if ends and max(works) == taken[-1] else None


def _not_resampled(works: Mapping[int, Look]) -> int | None:
    """Return the size with the fewest resampled maps and tables; None if there is a tie."""
    fewest = min(look.resampled for look in works.values())
    found = [side for side, look in works.items() if look.resampled == fewest]
    return found[0] if len(found) == 1 else None


def takes(model: nn.Module, image: tuple[int, int, int]) -> bool:
    """Return whether a network accepts images (channels, height, width); True if unknown."""
    trials = _Trials(model, image[0])
    return trials.look(*image[1:]) is not None or find_size(model, image[0]).how == _UNTRIED


def _found(side: int, how: str) -> Finding:
    return Finding((side, side), how)


class _Trials:
    """What a network does at each size; each size is tried once, on first access."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        self._channels = channels
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._looks: dict[int, Look | None] = {}
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        self._like = {"device": like.device, "dtype": like.dtype}
        held = [*model.parameters(), *model.buffers()]
        try:
            # A copy without data: if the network stores state while it runs, only the copy changes.
            empty = {id(tensor): self._mode.from_tensor(tensor) for tensor in held}
            self._model: nn.Module | None = deepcopy(model, empty).eval()
        except Exception:  # arbitrary code: some networks cannot be copied
            self._model = None

    def __getitem__(self, side: int) -> Look | None:
        if side not in self._looks:
            self._looks[side] = self.look(side, side)
        return self._looks[side]

    def look(self, height: int, width: int) -> Look | None:
        """Run the network on images of this size; return what it does, or None if it fails."""
        if self._model is None:
            return None
        seen = _Watching(Look(height))
        try:
            with _quiet(), torch.random.fork_rng(devices=[]), torch.no_grad(), self._mode, seen:
                self._model(torch.zeros(1, self._channels, height, width, **self._like))
        except Exception:  # a wrong size can fail anywhere inside
            return None
        return seen.look


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which torch does not log failing operations, since failures are expected."""
    logger = logging.getLogger(FakeTensorMode.__module__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class _Watching(TorchDispatchMode):
    """Records convolutions and resampling while a network runs."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record what it does to maps."""
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name == "convolution" and out.ndim == 4:
            self.look.first_stride = self.look.first_stride or int(args[3][0])
            if out.shape[-2] * out.shape[-1] > 1:
                self.look.last = max(out.shape[-2:])
        elif name.lstrip("_").startswith("upsample") and isinstance(out, Tensor):
            self.look.resampled += out.shape != args[0].shape
        return out
