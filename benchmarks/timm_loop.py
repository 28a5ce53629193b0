"""A training loop made of timm's parts, as in timm's training script."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import FastCollateMixup, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, dispatch_clip_grad
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import RandomCrop

from retinoscope.train.recipe import Recipe
from retinoscope.train.student import load_student


class Timm:
    """A network in timm's training loop, with the settings of one of our recipes."""

    def __init__(
        self, recipe: Recipe, batches: Iterator[tuple[Tensor, Tensor]], per_epoch: int
    ) -> None:
        loaded, _ = load_student(recipe)
        kind = torch.float64 if recipe.precision == "float64" else torch.float32
        self.model = loaded.model.to(kind).train()
        self._optimiser = create_optimizer_v2(
            list(self.model.parameters()), opt=recipe.optimiser, lr=recipe.lr,
            weight_decay=recipe.weight_decay, momentum=recipe.momentum,
        )  # fmt: skip
        self._scheduler, _ = create_scheduler_v2(
            self._optimiser, sched="cosine", num_epochs=recipe.epochs, min_lr=recipe.lr_end,
            warmup_epochs=recipe.warmup, warmup_lr=0.0, warmup_prefix=True, step_on_epochs=False,
            updates_per_epoch=per_epoch,
        )  # fmt: skip
        self._loss = SoftTargetCrossEntropy()
        self._batches, self._recipe = batches, recipe
        self._meters = {name: AverageMeter() for name in ("data", "update", "loss")}
        self._updates, self._since = 0, time.time()

    def step(self) -> float:
        """Do one step with its bookkeeping; returns its loss."""
        images, targets = next(self._batches)
        self._meters["data"].update(time.time() - self._since)
        half = self._recipe.precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = self._loss(self.model(images), targets)
        loss.backward()
        if self._recipe.clip:
            dispatch_clip_grad(self.model.parameters(), self._recipe.clip, mode="norm")
        self._optimiser.step()
        value = loss.item()
        self._meters["loss"].update(value, len(images))
        self._optimiser.zero_grad()
        self._updates += 1
        self._meters["update"].update(time.time() - self._since)
        self._since = time.time()
        if self._scheduler is not None:
            self._scheduler.step_update(self._updates, metric=self._meters["loss"].avg)
        return value


def timm_batches(
    recipe: Recipe, pixels: np.ndarray, labels: np.ndarray, classes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of timm's loader, with the recipe's augmentation."""
    loaded, _ = load_student(recipe)
    own, how = recipe.augmentation, loaded.preprocessing
    dataset: Any = InMemory([Image.fromarray(image) for image in pixels], labels)
    loader = create_loader(
        dataset, input_size=(3, *how.size), batch_size=recipe.batch, is_training=True,
        re_prob=own.erasing, re_mode="const", hflip=0.5 * own.flip, auto_augment=own.randaugment,
        interpolation=how.interpolation, mean=how.mean, std=how.std, num_workers=1,
        device=torch.device("cpu"),
        collate_fn=FastCollateMixup(
            mixup_alpha=own.mixup, cutmix_alpha=own.cutmix, prob=own.mixing,
            switch_prob=own.switch, label_smoothing=own.smoothing, num_classes=classes,
        ),
    )  # fmt: skip
    # timm resizes random crops; for small images, padded crops are usual, and faster.
    dataset.transform.transforms[0] = RandomCrop(how.size, padding=round(own.crop * how.size[0]))
    return iter(loader)


@dataclass
class InMemory(Dataset[Any]):
    """Images for timm's loader, repeated so that an epoch does not end."""

    images: Sequence[Image.Image]
    labels: np.ndarray
    transform: Any = None

    def __len__(self) -> int:
        """Far more than are used."""
        return 1000 * len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """An image, transformed, and its label."""
        place = index % len(self.images)
        return self.transform(self.images[place]), int(self.labels[place])
