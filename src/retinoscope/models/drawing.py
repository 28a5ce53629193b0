"""Seeded random numbers for networks that are random at test time, such as MC dropout.

Each draw depends only on the seed, the number of the pass, the image, and the number of earlier
draws in the pass. Batch size, image order, parallel jobs and resuming do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from retinoscope.core.errors import NotDeterministic

if TYPE_CHECKING:
    from retinoscope.anatomy.replay import State
    from retinoscope.core.subject import Subject

_aten = torch.ops.aten
_FILLS = {
    _aten.bernoulli_.float, _aten.uniform_.default, _aten.normal_.default,
    _aten.exponential_.default,
}  # fmt: skip
_MAKES = {
    _aten.rand_like.default, _aten.randn_like.default, _aten.bernoulli.default,
    _aten.bernoulli.p, _aten.rand.default, _aten.randn.default,
}  # fmt: skip


class Drawing(TorchDispatchMode):
    """A context in which a network draws its random numbers image by image, from seeds."""

    def __init__(self, seed: int, number: int, indices: Sequence[int]) -> None:
        """Create the context for one pass.

        Args:
            seed: Random seed of the subject.
            number: Number of the pass.
            indices: Indices of the images in the batch, in order.
        """
        super().__init__()
        self.seed, self.number, self.indices = seed, number, tuple(indices)
        self.drawn = 0
        """Number of draws so far in this pass."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation; if it draws random numbers, replace them by seeded ones."""
        options = dict(kwargs or {})
        if "dropout" in str(func) and func._can_decompose():
            with self:  # not decomposed in inference mode; its parts do the drawing
                return func.decompose(*args, **options)
        if func is _aten.native_dropout.default:
            kept = 1 - args[1]
            mask = self._draw(_aten.bernoulli_.float, torch.empty_like(args[0]), kept)
            return args[0] * mask / kept if kept else args[0] * 0, mask.bool()
        if func in _FILLS:
            return args[0].copy_(self._draw(func, args[0], *args[1:], **options))
        if func in _MAKES:
            like = func(*args, **options)
            if func is _aten.bernoulli.default:  # each entry has its own probability
                uniform = self._draw(_aten.uniform_.default, like)
                return (uniform < args[0]).to(like.dtype)
            if func is _aten.bernoulli.p:
                return self._draw(_aten.bernoulli_.float, like, args[1])
            normal = func in (_aten.randn_like.default, _aten.randn.default)
            fill = _aten.normal_.default if normal else _aten.uniform_.default
            return self._draw(fill, like)
        return func(*args, **options)

    def _draw(self, fill: Any, like: Tensor, *args: Any, **options: Any) -> Tensor:
        """Draw a tensor like ``like`` with ``fill``, from a separate seed for each image."""
        options.pop("generator", None)
        images = len(self.indices)
        if not like.ndim or like.shape[0] % images:
            raise NotDeterministic(
                f"The network draws numbers of shape {tuple(like.shape)} for {images} images: "
                "they cannot be told apart by image, so its passes cannot be repeated."
            )
        parts = []
        for index in self.indices:
            # torch's generator takes one 64-bit seed, so the numbers are mixed into one.
            mixed = np.random.SeedSequence([self.seed, self.number, index, self.drawn])
            source = torch.Generator().manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> 1))
            part = torch.empty(like.shape[0] // images, *like.shape[1:])
            parts.append(fill(part, *args, generator=source, **options))
        self.drawn += 1
        return torch.cat(parts).to(like.device, like.dtype)


def drawing(
    subject: Subject, number: int, indices: Sequence[int]
) -> AbstractContextManager[object]:
    """A context for one pass of a random network; it does nothing for deterministic networks."""
    return Drawing(subject.seed, number, indices) if subject.passes else nullcontext()


def drawn_walk(
    subject: Subject, number: int, indices: Sequence[int], images: Tensor, taps: frozenset[str]
) -> Iterator[State]:
    """Yield the states of one pass; passes may be interleaved, each with its own draws."""
    batch = subject.to_device(images)
    # Outside the context, because a new graph may have to be exported for this batch size.
    walk = subject.replay.fitting(batch).walk(batch, taps)
    if not subject.passes:
        yield from walk
        return
    block = Drawing(subject.seed, number, indices)
    while True:
        with block:
            state = next(walk, None)
        if state is None:
            return
        yield state
