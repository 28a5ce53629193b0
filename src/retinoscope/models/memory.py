"""Work on a batch that goes through in more parts as often as memory demands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from retinoscope.core.errors import RetinoscopeError
from retinoscope.models.device import out_of_memory

T = TypeVar("T")
_WAY_OUT = "Use a smaller --size, or --precision bfloat16 (in Python size=…, precision='bfloat16')."


class DoesNotFit(RetinoscopeError):
    """There is no memory for a single image."""


@dataclass
class Parts:
    """In how many parts batches go through; what was found once holds for the batches to come."""

    count: int = 1

    def run(
        self,
        work: Callable[[int], T],
        images: int,
        split: Callable[[int], None],
        way_out: str = _WAY_OUT,
    ) -> T:
        """What ``work`` gives, begun anew with twice as many parts whenever memory runs out.

        Args:
            work: Takes the number of parts; it must not keep what a failed attempt has done.
            images: How many there are, and so how many parts at most.
            split: Told the new number of parts before the next attempt.
            way_out: What to do where one image is too many.
        """
        while True:
            try:
                return work(min(self.count, images))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if self.count >= images:
                    raise DoesNotFit(f"One image does not fit into memory. {way_out}") from error
            # Behind the handler: until then, the error holds on to all tensors of the attempt.
            self.count = min(images, 2 * self.count)
            split(self.count)


def slices(images: int, parts: int) -> list[slice]:
    """Where the parts of a batch lie, as ``torch.chunk`` divides it.

    Example:
        >>> slices(7, 4)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None), slice(6, 8, None)]
    """
    each = -(-images // parts) or 1
    return [slice(start, start + each) for start in range(0, images, each)]


def went_in_parts(images: int, parts: int) -> str:
    """How it is said that a batch was divided.

    Example:
        >>> went_in_parts(7, 2)
        'out of memory: a mini-batch of 7 goes through in 2 parts'
    """
    return f"out of memory: a mini-batch of {images} goes through in {parts} parts"
