"""Where a model is to run, and whether it fits there."""

from __future__ import annotations

import torch

from retinoscope.core.errors import WrongInput, first_line


def find_device(asked: str | None) -> torch.device:
    """The device of that name, or the best there is; says what can be used where it cannot."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    best = "mps" if torch.backends.mps.is_available() else best
    try:
        return torch.empty(0, device=asked or best).device
    except (RuntimeError, AssertionError) as error:
        raise WrongInput(
            f"The device {asked!r} cannot be used: {first_line(error)} Here, {best!r} can."
        ) from None


def out_of_memory(error: Exception) -> bool:
    """Whether an error means that there were too many images at a time."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
