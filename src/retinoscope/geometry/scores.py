"""Loss and accuracy of a network on some images, with its current weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from retinoscope.core.errors import NotApplicable
from retinoscope.core.subject import Batch, Subject
from retinoscope.models.memory import Parts, slices, went_in_parts
from retinoscope.numerics.timing import seconds_each


@dataclass(frozen=True)
class Scores:
    """Means over images."""

    nll: float
    """Negative log-likelihood in nats; infinite or NaN if that of any image is."""
    accuracy: float
    images: int


def scored(
    subject: Subject, batches: Iterable[Batch], say: Callable[[str], None] = lambda text: None
) -> Scores:
    """Loss and accuracy of a subject's model with its current weights; targets may be soft.

    Uses log-softmax in double precision, so that no logit is too large. ``say`` is called with a
    notice if a batch must be processed in parts to save memory.
    """
    lost, hits, parts = [np.empty(0)], [np.empty(0)], Parts()
    with torch.inference_mode():
        for batch in batches:
            for logits, part in _answers(subject, batch, parts, say):
                one, other = _each(logits, part)
                lost.append(one)
                hits.append(other)
    nll, right = np.concatenate(lost), np.concatenate(hits)
    if not len(nll):
        return Scores(float("nan"), float("nan"), 0)
    with np.errstate(invalid="ignore"):  # the mean of +∞ and −∞ is undefined
        return Scores(float(nll.mean()), float(right.mean()), len(nll))


def seconds_per_image(
    subject: Subject, read: Callable[[int], Iterable[Batch]], images: int
) -> float:
    """The seconds that :func:`scored` takes per image, from trials on a few images.

    Args:
        subject: The subject to score.
        read: Returns the batches of the given number of first images.
        images: The number of available images.
    """
    if not images:
        return 0.0
    scored(subject, read(min(images, 4)))  # the first pass of a network is slower than the others
    return seconds_each(lambda n: scored(subject, read(n)), images, subject.batch)


def _answers(
    subject: Subject, batch: Batch, parts: Parts, say: Callable[[str], None]
) -> list[tuple[Tensor, Batch]]:
    """The logits of a batch; computed in parts if memory requires it."""
    images = len(batch.images)

    def answer(count: int) -> list[tuple[Tensor, Batch]]:
        some = [batch.rows(part) for part in slices(images, count)]
        return [(subject.model(subject.to_device(b.images)).cpu().double(), b) for b in some]

    def split(count: int) -> None:
        say(went_in_parts(images, count))

    return parts.run(answer, images, split) if images else []


def _each(logits: Tensor, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Each image's negative log-likelihood, and whether its most likely class is correct."""
    if batch.labels is None:
        raise NotApplicable("needs labels; these images have none")
    target = batch.labels if batch.targets is None else batch.targets.double()
    lost = cross_entropy(logits, target, reduction="none")
    return lost.numpy(), (logits.argmax(1) == batch.labels).double().numpy()
