"""Select the device for a model, and recognise that its memory is full."""

from __future__ import annotations

import torch

from retinoscope.core.errors import WrongInput, first_line


def find_device(asked: str | None) -> torch.device:
    """Return the device of this name, or the best one available; raise if it cannot be used."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    best = "mps" if torch.backends.mps.is_available() else best
    try:
        return torch.empty(0, device=asked or best).device
    except (RuntimeError, AssertionError) as error:
        raise WrongInput(
            f"The device {asked!r} cannot be used: {first_line(error)} Here, {best!r} can."
        ) from None


def out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
