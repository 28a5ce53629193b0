"""Speed of ``train``, against a bare training loop and a loop of timm's parts.

- ours is ``train`` itself with the strong CIFAR recipe: one worker that augments, Mixup and CutMix,
  clipping, the schedule, and reading every loss
- bare is forward, backward and optimiser step on batches in memory: the fastest possible loop
- timm's is its loader with one worker and the same augmentation, its fast collation with Mixup, its
  loss, optimiser, schedule, clipping and meters, combined as in its training script

All three run in this process with one thread, in turns: some steps of ours, of the bare loop, of
timm's, and so on. The workers run on another core, which should be idle. First it checks that the
three do the same: without augmentation they reach the same losses and weights. Checkpoints are
switched off and timed separately: the minute between two would count the other loops' turns too.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from pairs import Ratio, asked, verdict
from retinoscope.data.augment import Augmentation
from retinoscope.recipes import get_recipe
from retinoscope.train.checkpoints import Checkpoint, write_checkpoint
from retinoscope.train.feed import Portion
from retinoscope.train.learner import Learner
from retinoscope.train.optimiser import make_optimiser
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.schedule import Plan
from retinoscope.train.student import Student, load_student
from retinoscope.train.train import train_model
from timm_loop import Timm, timm_batches

MODELS = ("vit_tiny_patch4_cifar", "resnet18_cifar")
PRECISIONS = ("float32", "bfloat16")
CLASSES, SIDE, IMAGES = 100, 32, 2000
BATCH = 32
STEPS = 3
"""Steps of each loop in a turn."""
BARE_BAR, TIMM_BAR = 0.95, 1.0
AGREED = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 2e-1}
"""Tolerated distance of weights after two steps, relative to how far they have moved.

AdamW divides a gradient by its magnitude: where it is only rounding error, as for the biases of
keys, so is the step. In bfloat16 timm's loss is rounded too; ours is computed in float32.
"""


def main() -> None:
    """Print the lines of each network in each precision."""
    arguments = asked(__doc__, pairs=21, models=MODELS, precisions=PRECISIONS)
    with tempfile.TemporaryDirectory(prefix="training-") as temporary:
        pixels, labels = make_images()
        write_images(Path(temporary) / "images", pixels, labels)
        for model in arguments.models:
            recipe = replace(
                get_recipe("cifar_strong"), model=model, batch=BATCH,
                data=str(Path(temporary) / "images"),
            )  # fmt: skip
            agree(replace(recipe, precision="float64"), pixels, labels)
            for precision in arguments.precisions:
                chosen = replace(recipe, precision=precision)
                agree(chosen, pixels, labels)
                compare(chosen, pixels, labels, arguments.pairs)


def make_images() -> tuple[np.ndarray, np.ndarray]:
    """Random pixels (N, 32, 32, 3), and labels (N,)."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    return pixels, np.arange(IMAGES) % CLASSES


def write_images(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Write the images as class folders, which ``train`` reads once and keeps in memory."""
    for place, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / "train" / f"{label:03d}" / f"{place:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


class Bare:
    """A bare training loop: only forward, backward and optimiser steps."""

    def __init__(self, recipe: Recipe, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        loaded, _ = load_student(recipe)
        kind = torch.float64 if recipe.precision == "float64" else torch.float32
        self.model = loaded.model.to(kind).train()
        # Weight decay on all parameters, as in the recipe; timm exempts those that a network lists.
        self._optimiser = make_optimiser(nn.Sequential(self.model), recipe)
        self._batches, self._precision = batches, recipe.precision

    def step(self) -> float | Tensor:
        """Do one step; returns its loss, which is not read."""
        images, targets = next(self._batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._precision == "bfloat16"):
            logits = self.model(images)
        loss = cross_entropy(logits.to(targets.dtype), targets)
        loss.backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return loss.detach()


def in_timms_hands(recipe: Recipe, batches: Iterator[tuple[Tensor, Tensor]]) -> Timm:
    """Timm's loop, with a schedule for as many steps as ours."""
    return Timm(recipe, batches, IMAGES // BATCH)


def agree(recipe: Recipe, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Check that two steps without augmentation give the same losses and weights."""
    quiet = Augmentation(crop=0.0, flip=False, smoothing=recipe.augmentation.smoothing)
    still = replace(recipe, augmentation=quiet, warmup=0, advance="step")
    # The bare loop has no clipping and no schedule; gradients exceed a norm of 0.1.
    for name, make, chosen in (
        ("bare", Bare, replace(still, clip=0.0, schedule="constant")),
        ("timm's", in_timms_hands, replace(still, clip=0.1)),
    ):
        off, lost = distance(make, chosen, pixels, labels)
        bar = AGREED[recipe.precision]
        print(
            f"{recipe.model}, {recipe.precision}: weights of ours and {name} differ by {off:.1e} "
            f"of two steps, losses by {lost:.1e}"
        )
        if max(off, lost) > bar:
            raise SystemExit(f"They do not agree: the bar is {bar:.0e}.")


def distance(
    make: Callable[[Recipe, Iterator[tuple[Tensor, Tensor]]], Bare | Timm],
    recipe: Recipe,
    pixels: np.ndarray,
    labels: np.ndarray,
) -> tuple[float, float]:
    """Distance of the weights, relative to how far they have moved, and of the losses."""
    ours, student = learner(recipe)
    before = [value.detach().clone() for value in student.parameters()]
    portions = [
        Portion(as_images(pixels[place : place + 8]), torch.from_numpy(labels[place : place + 8]))
        for place in (0, 8)
    ]
    peer = make(recipe, in_memory(recipe, student, portions))
    lost = 0.0
    for step, portion in enumerate(portions):
        torch.manual_seed(ours.seed(step))  # for stochastic depth
        theirs = float(peer.step())
        lost = max(lost, abs(float(ours.learn(step, portion)) - theirs))
    way = [a - b for a, b in zip(student.parameters(), before, strict=True)]
    gap = [a - b for a, b in zip(student.parameters(), peer.model.parameters(), strict=True)]
    apart, moved = (torch.stack([part.norm() for part in x]).norm().item() for x in (gap, way))
    return apart / moved, lost


def learner(recipe: Recipe) -> tuple[Learner, Student]:
    """The object that does a step in ``train``, and its network."""
    loaded, _ = load_student(recipe)
    student = Student(loaded)
    return Learner(recipe, student, Plan.of(recipe, IMAGES), CLASSES, Processes()), student


def as_images(pixels: np.ndarray) -> Tensor:
    """The images as float32 (N, 3, 32, 32) in [0, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255


def in_memory(
    recipe: Recipe, student: Student, portions: Sequence[Portion]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches, repeated without end, normalised, with smoothed targets."""
    kind = torch.float64 if recipe.precision == "float64" else torch.float32
    share, batches = recipe.augmentation.smoothing, []
    for portion in portions:
        targets = (1 - share) * one_hot(portion.labels, CLASSES).float() + share / CLASSES
        batches.append((student.normalise(portion.images.to(kind)), targets.to(kind)))
    return cycle(batches)


def compare(recipe: Recipe, pixels: np.ndarray, labels: np.ndarray, pairs: int) -> None:
    """Time the three in turns, and print the ratios."""
    ours, student = learner(recipe)
    portions = [
        Portion(as_images(pixels[at : at + BATCH]), torch.from_numpy(labels[at : at + BATCH]))
        for at in range(0, 8 * BATCH, BATCH)
    ]
    bare = Bare(recipe, in_memory(recipe, student, portions))
    timm = in_timms_hands(recipe, timm_batches(recipe, pixels, labels, CLASSES))
    turns = Turns((bare.step, timm.step), pairs)
    with tempfile.TemporaryDirectory(prefix="training-") as temporary:
        with suppress(Enough):
            train_model(
                recipe, Path(temporary) / "run", workers=1, device="cpu", listeners=[turns],
                checkpoint_every=math.inf,
            )  # fmt: skip
        written = checkpoint_seconds(ours, portions[0], Path(temporary))
    to_bare, to_timm, theirs = turns.ratio(1, 0), turns.ratio(2, 0), turns.ratio(1, 2)
    print(
        f"{recipe.model}, {recipe.precision}, {STEPS} steps of {BATCH} images per turn:\n"
        f"  images per second of ours relative to the bare loop: {to_bare} "
        f"{verdict(to_bare.median >= BARE_BAR)} (bar {BARE_BAR}); a checkpoint takes "
        f"{written:.2f} s, one per minute {written / 60:.1%} of the time\n"
        f"  relative to timm's loop: {to_timm} {verdict(to_timm.median >= TIMM_BAR)} (bar "
        f"{TIMM_BAR}); timm's relative to the bare loop: {theirs}",
        flush=True,
    )


class Enough(Exception):
    """All turns have been taken."""


class Turns:
    """A listener that runs the other loops between the steps of a training."""

    def __init__(self, others: Sequence[Callable[[], object]], pairs: int) -> None:
        self._others, self._pairs = others, pairs
        self._times: list[list[float]] = []
        self._since = 0.0

    def begin(self, started: Any) -> None:
        """Do nothing."""

    def step(self, step: int) -> None:
        """Run the other loops when a turn of ours is over."""
        if step % STEPS:
            return
        stamps = [time.perf_counter()]
        for other in self._others:
            for _ in range(STEPS):
                other()
            stamps.append(time.perf_counter())
        if step > STEPS:  # the first turn is for warming up
            self._times.append([b - a for a, b in pairwise([self._since, *stamps])])
        if len(self._times) == self._pairs:
            raise Enough
        self._since = time.perf_counter()

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Print the message: something is wrong."""
        print(f"  {text}")

    def end(self) -> None:
        """Do nothing."""

    def ratio(self, a: int, b: int) -> Ratio:
        """The ratio of the times of two loops; ours has the index 0."""
        low, median, high = statistics.quantiles([x[a] / x[b] for x in self._times], n=4)
        seconds = [statistics.median(x[place] for x in self._times) for place in (a, b)]
        return Ratio(median, low, high, len(self._times), (seconds[0], seconds[1]))


def checkpoint_seconds(ours: Learner, portion: Portion, folder: Path) -> float:
    """Seconds to write a checkpoint with the optimiser's state: the median of three."""
    ours.learn(0, portion)
    times = []
    for step in range(3):
        begun = time.perf_counter()
        tensors, plain = ours.state()
        write_checkpoint(folder, Checkpoint(step, tensors, plain))
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    main()
