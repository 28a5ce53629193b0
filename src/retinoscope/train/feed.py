"""Batches by step number: image order, augmentation and shares depend on nothing else.

A resumed training therefore sees exactly the images that it would have seen without interruption,
for any number of workers and processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from retinoscope.core.errors import WrongInput
from retinoscope.data.augment import Augmentation
from retinoscope.data.augmenting import generator, preserved
from retinoscope.data.prepare import as_floats
from retinoscope.data.source import UnreadableImage
from retinoscope.train.images import LabelledImages

_ORDER = 3
"""Random stream for the image order of an epoch; augmentation uses other streams."""


class Portion(NamedTuple):
    """One process's share of a step."""

    images: Tensor
    """float32 (N, C, H, W) in [0, 1], augmented one by one."""
    labels: Tensor
    aside: tuple[str, ...] = ()
    """Images that could not be read, each with the reason."""


@dataclass(frozen=True)
class Feed(Dataset[Portion]):
    """A Dataset with one item per step: the augmented images of one process."""

    images: LabelledImages
    augmentation: Augmentation
    per_epoch: int
    """Steps per epoch; if images could not be read, its first images are repeated to fill it."""
    batch: int
    """Images per step over all processes."""
    seed: int
    rank: int = 0
    world: int = 1

    def __getitem__(self, step: int) -> Portion:
        epoch, indices = self.chosen(step)
        read: list[tuple[int, np.ndarray]] = []
        aside: list[str] = []
        for index in map(int, indices):
            try:
                read.append((index, self.images.read(index)))
            except UnreadableImage as error:
                aside.append(f"{self.images.name(index)}: {error}")
        if not read:
            raise WrongInput(f"None of the images of step {step} can be read: {aside[0]}")
        with preserved():
            views = [self._view(epoch, index, image) for index, image in read]
        labels = torch.from_numpy(self.images.labels[[index for index, _ in read]])
        return Portion(torch.stack(views), labels, tuple(aside))

    def chosen(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step, counted from 1, and the indices of this process's images."""
        epoch, place = divmod(step, self.per_epoch)
        share = self.batch // self.world
        first = place * self.batch + self.rank * share
        order = _order(len(self.images), self.seed, epoch + 1)
        return epoch + 1, order.take(range(first, first + share), mode="wrap")

    def _view(self, epoch: int, index: int, image: np.ndarray) -> Tensor:
        return self.augmentation.view(
            image, self.images.preprocessing, seed=self.seed, epoch=epoch,
            index=self.images.place(index), channels=self.images.split.channels,
        )  # fmt: skip

    def portions(self, start: int, stop: int, workers: int, pinned: bool) -> Iterator[Portion]:
        """The portions of these steps, in order; workers read some steps ahead."""
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=range(start, stop),
            num_workers=workers,
            pin_memory=pinned,
            prefetch_factor=4 if workers else None,
        )
        yield from loader


@lru_cache(maxsize=2)
def _order(images: int, seed: int, epoch: int) -> np.ndarray:
    return generator(seed, epoch, _ORDER).permutation(images)


def plain_batches(
    images: LabelledImages,
    indices: Sequence[int],
    size: int,
    say: Callable[[str], None],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of unaugmented images, float32 (N, C, H, W) in [0, 1], and their labels."""
    for start in range(0, len(indices), size):
        chosen = indices[start : start + size]
        if images.pixels is not None and images.split.channels == 3:
            taken = images.pixels[torch.as_tensor(chosen)].permute(0, 3, 1, 2).contiguous()
            yield as_floats(taken), torch.from_numpy(images.labels[list(chosen)])
            continue
        read: list[tuple[Tensor, int]] = []
        for index in chosen:
            try:
                read.append((images.prepared(index), int(images.labels[index])))
            except UnreadableImage as error:
                say(f"Set aside: {images.name(index)}: {error}")
        if read:
            stacked = torch.stack([image for image, _ in read])
            yield as_floats(stacked), torch.tensor([label for _, label in read])
