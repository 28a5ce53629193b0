"""The images of a training: their selection and labels, in memory if they fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.specification import Specification
from retinoscope.core.wording import duration
from retinoscope.data.load import load_data
from retinoscope.data.prepare import prepare
from retinoscope.data.source import Source
from retinoscope.data.split import ImageSplit
from retinoscope.data.subset import balanced_subset, class_fraction
from retinoscope.train.recipe import Recipe

_IN_MEMORY = 2 << 30
"""Largest number of bytes of images that are kept in memory."""
_AT_ONCE = 512
_EVERY = 5.0
"""Seconds between two messages about the progress of reading."""
_SCORED = ("test", "val", "validation", "valid")


@dataclass(frozen=True)
class LabelledImages:
    """Some images of a split, all of them with labels."""

    split: ImageSplit
    labels: np.ndarray
    """int64 (N,)."""
    pixels: Tensor | None = field(default=None, repr=False)
    """uint8 (N, H, W, 3), as prepared for the model; None if they are read when needed."""

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, index: int) -> int:
        """The index of an image in its source, which does not depend on the selection."""
        return int(self.split.places[index])

    def name(self, index: int) -> str:
        """The name of an image for messages."""
        return self.split.source.name(self.place(index))

    def read(self, index: int) -> np.ndarray:
        """An image, uint8 (H, W, 3): prepared if it is in memory, otherwise as stored."""
        if self.pixels is not None:
            return self.pixels[index].numpy()
        return self.split.source.read(self.place(index))

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that an image still needs after :meth:`read`."""
        own = self.split.preprocessing
        return own if self.pixels is None else replace(own, crop_pct=1.0)

    def prepared(self, index: int) -> Tensor:
        """An image prepared for the model, uint8 (C, H, W)."""
        return prepare(self.read(index), self.preprocessing, self.split.channels)

    def in_memory(self, say: Callable[[str], None]) -> LabelledImages:
        """The same images in memory, if they fit; unreadable ones are reported and left out."""
        height, width = self.split.preprocessing.size
        if len(self) * height * width * 3 > _IN_MEMORY:
            return self
        pixels = torch.empty(len(self), height, width, 3, dtype=torch.uint8)
        lost: list[int] = []
        begun = said = time.monotonic()
        for start in range(0, len(self), _AT_ONCE):
            for sample in replace(self.split, channels=3).fetch(
                range(start, min(start + _AT_ONCE, len(self)))
            ):
                if sample.image is None:
                    lost.append(sample.place)
                    say(f"Set aside: {self.name(sample.place)}: {sample.reason}")
                else:
                    pixels[sample.place] = sample.image.permute(1, 2, 0)
            now = time.monotonic()
            if now - said > _EVERY and start:
                said = now
                left = (now - begun) * (len(self) / start - 1)
                say(f"reading {self.split.name}: {start} of {len(self)}, {duration(left)} left")
        kept = np.setdiff1d(np.arange(len(self)), lost)
        whole = pixels if not lost else pixels[torch.from_numpy(kept)]
        # Workers are other processes; shared memory is not copied for each of them.
        return replace(self.chosen(kept), pixels=whole.share_memory_())

    def chosen(self, indices: np.ndarray) -> LabelledImages:
        """The images at these indices."""
        split = replace(self.split, places=self.split.places[indices])
        pixels = None if self.pixels is None else self.pixels[torch.from_numpy(indices)]
        return LabelledImages(split, self.labels[indices], pixels)

    @property
    def protocol(self) -> dict[str, Any]:
        """A description of the images and their preprocessing, as plain values."""
        return dict(self.split.protocol)


def find_images(
    recipe: Recipe,
    preprocessing: Preprocessing,
    shape: tuple[int, int],
    root: str | None = None,
) -> tuple[LabelledImages, LabelledImages | None]:
    """The images to train on and those to evaluate on, or None if there are none.

    Args:
        recipe: Determines the data and the share to use.
        preprocessing: The preprocessing that the model expects.
        shape: The model's number of channels and of outputs.
        root: Folder to look for files in.
    """
    sources = load_data(recipe.data, root, preprocessing.size)
    if "train" not in sources:
        raise WrongInput(
            f"{recipe.data!r} has no split called train to learn from. It has: "
            f"{', '.join(sources) or 'none'}. Lay a folder out as train/CLASS and test/CLASS."
        )
    fits = Fit(recipe.model, recipe.data, preprocessing, *shape)
    train = fits.labelled("train", sources["train"])
    # The selection does not depend on the recipe's seed, so that seeds differ only in training.
    train = train.chosen(class_fraction(train.labels, recipe.fraction))
    scored = next((name for name in _SCORED if name in sources), None)
    if recipe.holdout:
        held = class_fraction(train.labels, recipe.holdout)
        rest = np.setdiff1d(np.arange(len(train)), held)
        train, test = train.chosen(rest), train.chosen(held)
        test = replace(test, split=replace(test.split, name="train, held out"))
    elif scored is None:
        return _enough(train, recipe), None
    else:
        test = fits.labelled(scored, sources[scored])
    if recipe.scored:
        places = balanced_subset(test.labels, len(test), recipe.scored)
        test = test.chosen(places)
        test = replace(test, split=replace(test.split, balanced=True))
    return _enough(train, recipe), test


@dataclass(frozen=True)
class Fit:
    """A model and data whose classes correspond to the model's outputs one to one."""

    model: str
    data: str
    preprocessing: Preprocessing
    channels: int
    outputs: int

    def labelled(self, name: str, source: Source) -> LabelledImages:
        """All labelled images of a split; raises an error if the classes do not fit the model."""
        if source.labels is None or source.classes is None:
            raise WrongInput(
                f"The images of {self.data!r} ({name}) have no labels to learn. A folder gives "
                "them by its class folders, a table by its label column."
            )
        if (classes := len(source.classes)) != self.outputs:
            # Other data may have another number of classes, so the fix is suggested, not applied.
            asked = Specification.parse(self.model)
            fitting = Specification(asked.name, {**asked.options, "num_classes": classes})
            way = f"Give it a head that fits: --model '{fitting}' (in Python Recipe(model=…))"
            if asked.name.endswith(".safetensors"):
                way = f"Build it again from a model with num_classes={classes}."
            raise WrongInput(
                f"{self.model} has {self.outputs} answers, but {self.data} has {classes} classes. "
                f"{way}"
            )
        known = np.flatnonzero(source.labels >= 0)
        # Images generated at the model's size need no crop.
        made = hasattr(source, "read_many")
        whole = replace(self.preprocessing, crop_pct=1.0) if made else self.preprocessing
        split = ImageSplit(
            name, source, known, whole, self.channels, np.arange(self.outputs), self.outputs,
            called=self.data,
        )  # fmt: skip
        return LabelledImages(split, source.labels[known].astype(np.int64))


def _enough(train: LabelledImages, recipe: Recipe) -> LabelledImages:
    if len(train) < recipe.batch:
        raise WrongInput(
            f"A batch of {recipe.batch} cannot be filled: {recipe.data} gives {len(train)} images "
            f"to train on. Use a batch of {len(train)} or fewer: --batch {len(train)} "
            f"(in Python Recipe(batch={len(train)}))"
        )
    return train
