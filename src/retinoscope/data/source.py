"""Images as they are stored, before anything is done to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from retinoscope.core.errors import RetinoscopeError


def configured_root() -> str | None:
    """Where data lie unless somebody says otherwise: what RETINOSCOPE_DATA names."""
    return os.environ.get("RETINOSCOPE_DATA") or None


class UnreadableImage(RetinoscopeError, ValueError):
    """One image is damaged, empty or no image at all; it is set aside and listed, never skipped."""


class UnknownData(RetinoscopeError, LookupError):
    """No data of that name could be found."""


@runtime_checkable
class Source(Protocol):
    """A list of images with or without labels. Reading one twice gives the same pixels."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """What the labels mean, in order; None where there are none."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """One number per image, int64 (N,); None for unlabelled images."""
        ...

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        """Further facts about each image, int64 (N,), such as the shape and texture of cues."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when an image or a label does: part of the key of what is measured."""
        ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What to call an image in messages: a file, or a row of a table."""
        ...

    def digest(self, index: int) -> bytes:
        """A hash of what is stored for an image; empty where :attr:`fingerprint` says it all."""
        ...

    def read(self, index: int) -> np.ndarray:
        """The image as it should be seen: RGB, uint8 (H, W, 3). Raises :class:`UnreadableImage`."""
        ...
