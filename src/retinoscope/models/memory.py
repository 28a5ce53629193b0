"""Run work on a batch in as many parts as memory requires."""

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
    """Not even a single image fits into memory."""


@dataclass
class Parts:
    """The number of parts a batch is divided into; once increased, it applies to later batches."""

    count: int = 1

    def run(
        self,
        work: Callable[[int], T],
        images: int,
        split: Callable[[int], None],
        way_out: str = _WAY_OUT,
    ) -> T:
        """Return the result of ``work``, restarted with twice as many parts when memory runs out.

        Args:
            work: Takes the number of parts. It must discard what a failed attempt has done.
            images: Number of images, which is also the maximum number of parts.
            split: Called with the new number of parts before the next attempt.
            way_out: Advice for the error message if a single image does not fit.
        """
        while True:
            try:
                return work(min(self.count, images))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if self.count >= images:
                    raise DoesNotFit(f"One image does not fit into memory. {way_out}") from error
            # After the except block: inside it, the error keeps all tensors of the attempt alive.
            self.count = min(images, 2 * self.count)
            split(self.count)


def slices(images: int, parts: int) -> list[slice]:
    """The slices of a batch's parts, divided as ``torch.chunk`` does.

    Example:
        >>> slices(7, 4)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None), slice(6, 8, None)]
    """
    each = -(-images // parts) or 1
    return [slice(start, start + each) for start in range(0, images, each)]


def went_in_parts(images: int, parts: int) -> str:
    """The message that a batch was divided into parts.

    Example:
        >>> went_in_parts(7, 2)
        'out of memory: a mini-batch of 7 goes through in 2 parts'
    """
    return f"out of memory: a mini-batch of {images} goes through in {parts} parts"
