"""Sources: lists of stored images, before preprocessing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from retinoscope.core.errors import RetinoscopeError


def configured_root() -> str | None:
    """The default folder of data: the value of RETINOSCOPE_DATA, or None."""
    return os.environ.get("RETINOSCOPE_DATA") or None


class UnreadableImage(RetinoscopeError, ValueError):
    """An image is damaged, empty or not an image. It is set aside and listed."""


class UnknownData(RetinoscopeError, LookupError):
    """No data of that name could be found."""


@runtime_checkable
class Source(Protocol):
    """A list of images, with or without labels. Reading an image twice gives the same pixels."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names, in the order of the labels; None for unlabelled images."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """One label per image, int64 (N,); None for unlabelled images."""
        ...

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        """Further attributes of each image, int64 (N,), such as the shape and texture of cues."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies the images and labels; with :meth:`digest`, part of a measurement's key."""
        ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """The name of an image for messages: a file, or a row of a table."""
        ...

    def digest(self, index: int) -> bytes:
        """A hash of the stored image; empty if :attr:`fingerprint` covers it."""
        ...

    def read(self, index: int) -> np.ndarray:
        """The decoded image: RGB, uint8 (H, W, 3). Raises :class:`UnreadableImage`."""
        ...
