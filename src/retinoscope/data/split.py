"""Splits: selected images of a source, prepared for a model, with labels in its own classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from retinoscope.core.errors import NotApplicable
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.subject import Batch, SetAside
from retinoscope.core.view import Clean, PixelView, View, describe_view
from retinoscope.data.augment import Augmentation
from retinoscope.data.augmenting import generator
from retinoscope.data.prepare import as_floats, prepare
from retinoscope.data.source import Source, UnreadableImage
from retinoscope.data.subset import evenness

_VIEWS = 64
"""Random stream for views; augmentation has its own streams."""


class _Sample(NamedTuple):
    """One requested image: its pixels, or the reason why there are none."""

    place: int
    image: Tensor | None
    label: int
    target: Tensor | None
    reason: str = ""


@dataclass(frozen=True)
class ImageSplit:
    """Implements :class:`retinoscope.core.subject.Split` for any source."""

    name: str
    source: Source
    places: np.ndarray
    """Indices of the images in the source, in order."""
    preprocessing: Preprocessing
    channels: int = 3
    classes: np.ndarray | None = None
    """The model's class for each class of the source, or -1; None if they are not comparable."""
    outputs: int = 0
    """Number of classes of the model."""
    called: str = ""
    """The name by which the data were requested."""
    unlabelled_because: str = ""
    augmentation: Augmentation | None = None
    """Augmentation of the images; None if they are not augmented."""
    in_training: Augmentation | None = None
    """Augmentation in the view :class:`Augmented`; None for splits that are not for training."""
    view: PixelView | None = None
    """View that changes each image; None for unchanged images."""
    seed: int = 0
    left_out: int = 0
    """Number of images left out because the model does not know their class."""
    balanced: bool = False
    """Whether the images were chosen to balance the classes as far as possible."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def labelled(self) -> bool:
        """Whether labels exist in the model's own classes."""
        return not self.unlabelled_because

    @cached_property
    def labels(self) -> np.ndarray | None:
        """Labels of the images in the model's own classes; None if there are none."""
        if not self.labelled or self.source.labels is None or self.classes is None:
            return None
        labels = self.source.labels[self.places]
        return np.where(labels < 0, -1, self.classes[labels])

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        """Further attributes of the images, by name."""
        return {name: values[self.places] for name, values in self.source.attributes.items()}

    @property
    def fingerprint(self) -> str:
        """A hash of images, selection, preprocessing, labels, augmentation and view."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        normalisation = ("mean", "std")
        prepared = {
            k: v for k, v in self.preprocessing.to_plain().items() if k not in normalisation
        }
        plain = [self.source.fingerprint, prepared, self.channels, self._augmented]
        plain += [] if self.view is None else [describe_view(self.view)]
        digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
        digest.update(self.places.astype("<i8").tobytes())
        for place in self.places:
            digest.update(self.source.digest(int(place)))
        if self.labels is not None:
            digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()

    @property
    def _augmented(self) -> dict[str, Any] | None:
        return self.augmentation and self.augmentation.to_plain() | {"seed": self.seed}

    @property
    def protocol(self) -> dict[str, Any]:
        """A description of the images and their preprocessing, as plain values."""
        height, width = self.preprocessing.size
        return {
            "data": self.called,
            "split": self.name,
            "images": len(self),
            "of": len(self.source),
            "size": f"{height}×{width}",
            "preprocessing": self.preprocessing.to_plain(),
            "augmentation": self._augmented,
            "view": None if self.view is None else describe_view(self.view),
            "labels": self.unlabelled_because or "yes",
            "left out": self.left_out,
            "balanced": self._evenness[0],
            "choice": self._evenness[1],
            "data fingerprint": self.fingerprint[:12],
        }

    @cached_property
    def _evenness(self) -> tuple[bool, str]:
        """Whether every class has the same number of images, and a description in words."""
        labels = self.source.labels
        if not self.balanced or labels is None:
            return False, ""
        if self.left_out and self.classes is not None:  # only classes that the model knows
            labels = np.where(self.classes[labels] >= 0, labels, -1)
        return evenness(labels, labels[self.places])

    def known(self) -> ImageSplit:
        """The same split without images of classes that the model does not know."""
        return self._known

    @cached_property
    def _known(self) -> ImageSplit:
        if self.source.labels is None or self.classes is None:
            return self
        labels = self.source.labels[self.places]
        # An item that could not be read has the label -1; it stays, to be set aside and listed.
        known = (labels < 0) | (self.classes[labels] >= 0)
        if known.all():
            return self
        return replace(self, places=self.places[known], left_out=int((~known).sum()))

    def viewed(self, view: View) -> ImageSplit:
        """The same images in another view; raises ``NotApplicable`` if that is impossible."""
        if view not in self._viewed:
            self._viewed[view] = self._see(view)
        return self._viewed[view]

    @cached_property
    def _viewed(self) -> dict[View, ImageSplit]:
        """Views that were requested; cached, so that each fingerprint is computed once."""
        return {}

    def _see(self, view: View) -> ImageSplit:
        clean = replace(self, augmentation=None, view=None)
        if isinstance(view, Clean):
            return clean
        if isinstance(view, PixelView):
            return replace(clean, view=view)
        if self.in_training is None:
            raise NotApplicable(
                f"needs the split {self.name!r} augmented as in training; only training images are"
            )
        return replace(clean, augmentation=self.in_training)

    def names(self, indices: Sequence[int]) -> list[str]:
        """The names of the images at these indices: files, or rows of a table."""
        return [_printable(self.source.name(int(self.places[index]))) for index in indices]

    def batches(self, indices: Sequence[int], size: int, workers: int = 0) -> Iterator[Batch]:
        """The images at these indices, in batches of ``size``, for any number of workers."""
        chunks = [indices[start : start + size] for start in range(0, len(indices), size)]
        loader = DataLoader(
            _Chunks(self, chunks), batch_size=None, num_workers=workers, collate_fn=None
        )
        yield from (self._batch(samples) for samples in loader)

    def _batch(self, samples: Sequence[_Sample]) -> Batch:
        read = [sample for sample in samples if sample.image is not None]
        aside = [
            SetAside(_printable(self.source.name(int(self.places[s.place]))), _printable(s.reason))
            for s in samples
            if s.image is None
        ]
        height, width = self.preprocessing.size
        images = [s.image for s in read if s.image is not None]
        stacked = torch.stack(images) if images else torch.empty(0, self.channels, height, width)
        soft = self.augmentation is not None and self.augmentation.soft and self.labelled
        targets = [s.target for s in read if s.target is not None]
        return Batch(
            stacked if stacked.is_floating_point() else as_floats(stacked),
            tuple(s.place for s in read),
            torch.tensor([s.label for s in read]) if self.labels is not None else None,
            (torch.stack(targets) if targets else torch.empty(0, self.outputs)) if soft else None,
            tuple(aside),
        )

    def fetch(self, indices: Sequence[int]) -> list[_Sample]:
        """Read and prepare images; an unreadable one is returned with the reason."""
        many = getattr(self.source, "read_many", None)
        plain = self.augmentation is None and self.view is None
        if many is not None and plain and self.channels == 3:
            images = torch.from_numpy(many(self.places[list(indices)])).permute(0, 3, 1, 2)
            if tuple(images.shape[-2:]) == self.preprocessing.size:
                return [
                    _Sample(i, x, self._label(i), None)
                    for i, x in zip(indices, images, strict=True)
                ]
        return [self._sample(index) for index in indices]

    def _sample(self, index: int) -> _Sample:
        try:
            if self.augmentation is None:
                image = prepare(self._read(index), self.preprocessing, self.channels)
                return self._seen(index, image)
            return self._augment(index, self.augmentation)
        except UnreadableImage as error:
            return _Sample(index, None, -1, None, str(error))

    def _seen(self, index: int, image: Tensor) -> _Sample:
        """A prepared image in the view; random numbers depend only on the seed and the image."""
        label = self._label(index)
        if self.view is None:
            return _Sample(index, image, label, None)
        # By the index in the source, so that the selection of images has no influence.
        draw = generator(self.view.seed, int(self.places[index]), _VIEWS)
        pixels = as_floats(image).permute(1, 2, 0).numpy()
        seen, label = self.view.see(pixels, label, draw)
        seen = np.ascontiguousarray(seen.transpose(2, 0, 1), np.float32)
        return _Sample(index, torch.from_numpy(seen), label, None)

    def _augment(self, index: int, augmentation: Augmentation) -> _Sample:
        seen, partner, share = augmentation.mixed(
            self._read, self.preprocessing,
            seed=self.seed, index=index, total=len(self), channels=self.channels,
        )  # fmt: skip
        label, target = self._label(index), None
        if augmentation.soft and self.labels is not None:
            target = augmentation.target((label, self._label(partner)), share, self.outputs)
        return _Sample(index, seen, label, target)

    def _read(self, index: int) -> np.ndarray:
        return self.source.read(int(self.places[index]))

    def _label(self, index: int) -> int:
        return -1 if self.labels is None else int(self.labels[index])


def _printable(text: str) -> str:
    """The text with unencodable characters escaped, which file names may contain."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Chunks(Dataset):
    """A Dataset whose items are batches, so that a worker reads a whole batch at once."""

    def __init__(self, split: ImageSplit, chunks: Sequence[Sequence[int]]) -> None:
        self.split = split
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, place: int) -> list[_Sample]:
        if place >= len(self.chunks):
            raise IndexError(place)
        return self.split.fetch(self.chunks[place])
