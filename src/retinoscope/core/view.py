"""Views of a split: clean, augmented as in training, corrupted, noised, occluded.

A view is a frozen dataclass: its fields describe it completely and are part of the key of a
measurement. It works in pixel space, on the model's input before normalisation, and maps image and
label together. Its random numbers depend only on its seed and the image, so the pixels are the same
for any batch, order, number of workers and machine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

Label = TypeVar("Label", int, "np.ndarray")
"""A class, or a label map (H, W) whose entries are classes."""


@dataclass(frozen=True)
class Clean:
    """The unchanged images."""


@dataclass(frozen=True)
class Augmented:
    """Augmented as in training, possibly with soft targets. Training splits define how."""


@runtime_checkable
class PixelView(Protocol):
    """A view that changes one image at a time."""

    @property
    def seed(self) -> int:
        """Seed of the random numbers, from 0 to 2³² − 1."""
        ...

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """The changed image (H, W, C), float32 in [0, 1], and its label.

        ``draw`` is a generator that depends only on ``seed`` and the image; no other source of
        random numbers may be used. If the same fields come to give different pixels, increase the
        class constant ``schema``.
        """
        ...


View = Clean | Augmented | PixelView

CLEAN = Clean()
AUGMENTED = Augmented()


def describe_view(view: View) -> dict[str, Any] | None:
    """A view as plain values, for keys and protocols; None for clean images.

    Example:
        >>> describe_view(CLEAN), describe_view(AUGMENTED)
        (None, {'view': 'augmented'})
    """
    if view == CLEAN:
        return None
    if not is_dataclass(view):
        raise TypeError(
            f"A view must be a frozen dataclass, so that its fields describe it: {view!r}."
        )
    kind = type(view)
    values = {f.name: getattr(view, f.name) for f in fields(view)}
    described: dict[str, Any] = {"view": kind.__name__.lower(), **values}
    if not kind.__module__.startswith("retinoscope."):  # distinguishes views with the same name
        described["of"] = f"{kind.__module__}.{kind.__qualname__}"
    if (schema := getattr(kind, "schema", 1)) != 1:
        described["schema"] = schema
    return described
