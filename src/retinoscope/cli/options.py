"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from retinoscope.core.errors import WrongInput

Size = Annotated[
    str | None,
    Option(help="Image size: 224, or 224x160 (height x width). The model's own if not given."),
]
Untrained = Annotated[
    bool, Option("--untrained", help="Random weights by --seed instead of published ones.")
]
Weights = Annotated[
    Path | None, Option(help="A .safetensors or .pth file to take the weights from.")
]
AllowPickle = Annotated[
    bool, Option("--allow-pickle", help="Read a .pth file that runs code. Only if you trust it.")
]


def how_many(text: str) -> int | None:
    """A number of images; None for all.

    Example:
        >>> how_many("256"), how_many("all")
        (256, None)
    """
    if text.strip().lower() == "all":
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise WrongInput(f"--images is a number from 1 on, or all; got {text!r}.")
    return int(text)


def as_numbers(text: str | None, flag: str) -> tuple[float, ...] | None:
    """Numbers with commas between them.

    Example:
        >>> as_numbers("0.5,0.4,0.3", "--mean")
        (0.5, 0.4, 0.3)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise WrongInput(
            f"{flag} is a number or one per channel, such as 0.5,0.5,0.5; got {text!r}."
        ) from None
