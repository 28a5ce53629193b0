"""What the texts of options mean."""

from __future__ import annotations

from retinoscope.core.errors import WrongInput


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
