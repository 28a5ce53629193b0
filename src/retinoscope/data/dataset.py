"""Images of the user's own Dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from retinoscope.core.errors import first_line
from retinoscope.data.decode import from_array
from retinoscope.data.source import UnknownData, UnreadableImage

_SAMPLED = 64
_READ_TWICE = 8


class DatasetSource:
    """The items of a map-style Dataset, each an image or an image and its label.

    Labels are taken from its ``targets`` or ``labels`` if these match the items, otherwise every
    item is read once. An item that cannot be read gets the label -1: its image will be set aside
    anyway. The fingerprint is the Dataset's own ``fingerprint`` if it has one, otherwise a hash of
    its labels and up to 64 evenly spaced images.

    Args:
        dataset: Any object with ``len()`` and integer indices. Its images must not be normalised
            or augmented: see :func:`retinoscope.data.decode.from_array`.
        classes: Names of the classes. Default: the Dataset's ``classes``, or the numbers.
    """

    def __init__(self, dataset: Any, classes: Sequence[str] | None = None) -> None:
        self.dataset = dataset
        self._length = _length(dataset)
        self.attributes: Mapping[str, np.ndarray] = {}
        self.labels = self._read_labels()
        self.classes = None if self.labels is None else self._name_classes(self.labels, classes)
        own = getattr(dataset, "fingerprint", None)
        self._vouched = isinstance(own, str)
        self.fingerprint = own if isinstance(own, str) else self._hash()

    def __len__(self) -> int:
        return self._length

    def name(self, index: int) -> str:
        """The index of the item and the type of the Dataset."""
        return f"item {index} of {type(self.dataset).__name__}"

    def digest(self, index: int) -> bytes:
        """A hash of the image's pixels; empty if the Dataset has its own fingerprint."""
        return b"" if self._vouched else hashlib.sha256(self._pixels(index)).digest()

    def read(self, index: int) -> np.ndarray:
        """The image as RGB, uint8 (H, W, 3)."""
        return from_array(self._item(index)[0], self.name(index))

    def _item(self, index: int) -> tuple[Any, Any]:
        """The image and its label, or None for an item without a label."""
        try:
            item = self.dataset[index]
        except Exception as error:
            raise UnreadableImage(
                f"{self.name(index)} cannot be read: {type(error).__name__}: {first_line(error)}"
            ) from error
        if isinstance(item, tuple | list):
            return (item[0] if item else None), (item[1] if len(item) > 1 else None)
        return item, None

    def _label(self, index: int) -> int | None:
        """The label of an item; -1 if it cannot be read, None if it has none."""
        try:
            label = self._item(index)[1]
        except UnreadableImage:
            return -1
        if label is None:
            return None
        value = np.asarray(label.detach().cpu() if isinstance(label, Tensor) else label)
        if value.size != 1 or not np.issubdtype(value.dtype, np.integer) or value.item() < 0:
            raise UnknownData(
                f"The label of {self.name(index)} is {_short(label)}. Expected is the number of "
                "a class, counted from 0."
            )
        return int(value.item())

    def _read_labels(self) -> np.ndarray | None:
        given = self._given_labels()
        if given is not None:
            return given
        labels = [self._label(index) for index in range(len(self))]
        missing = [index for index, label in enumerate(labels) if label is None]
        known = [label for label in labels if label is not None and label >= 0]
        if not known:
            return None
        if missing:
            raise UnknownData(
                f"{self.name(missing[0])} has no label, but others have. Give all of them one, or "
                "none."
            )
        return np.array(labels, dtype=np.int64)

    def _given_labels(self) -> np.ndarray | None:
        """The Dataset's own list of labels, if it has one that matches its items."""
        for attribute in ("targets", "labels"):
            given = getattr(self.dataset, attribute, None)
            if not isinstance(given, Sequence | np.ndarray | Tensor) or isinstance(given, str):
                continue
            try:
                labels = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
            except ValueError:  # lists of different lengths, such as bounding boxes
                continue
            if labels.shape != (len(self),) or not np.issubdtype(labels.dtype, np.integer):
                continue
            # A target_transform changes the labels of items but not the list.
            said = {index: self._label(index) for index in _spread(len(self), 3)}
            if all(label in (labels[index], None, -1) for index, label in said.items()):
                return labels.astype(np.int64) if (labels >= 0).all() else None
        return None

    def _name_classes(self, labels: np.ndarray, asked: Sequence[str] | None) -> tuple[str, ...]:
        own = getattr(self.dataset, "classes", None)
        named = asked if asked is not None else own
        largest = int(labels.max())
        if named is None or isinstance(named, str) or not isinstance(named, Sequence):
            return tuple(map(str, range(largest + 1)))
        if len(named) <= largest:
            raise UnknownData(
                f"The labels of {type(self.dataset).__name__} go up to {largest}, but only "
                f"{len(named)} classes have a name: {_short(list(named))}. Name all of them."
            )
        return tuple(map(str, named))

    def _hash(self) -> str:
        digest = hashlib.sha256(f"{len(self)} {self.classes}".encode())
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        for number, index in enumerate(_spread(len(self), _SAMPLED)):
            pixels = self._pixels(index)
            if number < _READ_TWICE and self._pixels(index) != pixels:
                raise UnknownData(
                    f"{self.name(index)} is another image each time it is read. Take what is "
                    "random, such as augmentation, out of the Dataset."
                )
            digest.update(pixels)
        return digest.hexdigest()[:12]

    def _pixels(self, index: int) -> bytes:
        try:
            pixels = self.read(index)
        except UnreadableImage:
            return b"unreadable"
        return str(pixels.shape).encode() + pixels.tobytes()


def _length(dataset: Any) -> int:
    what = type(dataset).__name__
    advice = "Expected is a map-style Dataset, with __len__ and __getitem__."
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UnknownData(f"{what} cannot be read by number, only in a row if at all. {advice}")
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        raise UnknownData(f"{what} does not say how many items it has. {advice}") from None


def _spread(length: int, count: int) -> list[int]:
    """Up to ``count`` indices below ``length``, evenly spaced from the first to the last.

    Example:
        >>> _spread(10, 4), _spread(2, 4), _spread(0, 4)
        ([0, 3, 6, 9], [0, 1], [])
    """
    if length == 0:
        return []
    return np.unique(np.linspace(0, length - 1, count).round().astype(int)).tolist()


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"
