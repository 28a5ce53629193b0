"""How well a network does on some images, whatever its weights are at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from retinoscope.core.errors import NotApplicable
from retinoscope.core.subject import Batch, Subject
from retinoscope.models.memory import Parts, slices, went_in_parts

_FIRST, _ENOUGH = 4, 0.5
"""Images of the first trial for an estimate, and the seconds that a trial need not exceed."""


@dataclass(frozen=True)
class Scores:
    """Means over images."""

    nll: float
    """Negative log-likelihood in nats; infinite or NaN where that of an image is."""
    accuracy: float
    images: int


def scored(
    subject: Subject, batches: Iterable[Batch], say: Callable[[str], None] = lambda text: None
) -> Scores:
    """Loss and accuracy of a subject's model as it is now; targets may be soft.

    By log-softmax in double precision: no logit is too large for it. ``say`` is told where memory
    forces a batch through in parts.
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
    with np.errstate(invalid="ignore"):  # +∞ and −∞ have no mean
        return Scores(float(nll.mean()), float(right.mean()), len(nll))


def seconds_per_image(
    subject: Subject, read: Callable[[int], Iterable[Batch]], images: int
) -> float:
    """The time that :func:`scored` takes for an image, by trials on few of them.

    Args:
        subject: What is scored.
        read: Gives the batches of the first so many images.
        images: How many there are.
    """
    count = min(_FIRST, images)
    scored(subject, read(count))  # the first pass of a network is slower than all others
    while count:
        start = time.monotonic()
        scored(subject, read(count))
        seconds = time.monotonic() - start
        larger = min(2 * count, images, subject.batch)
        if seconds >= _ENOUGH or larger <= count:
            return seconds / count
        count = larger
    return 0.0


def _answers(
    subject: Subject, batch: Batch, parts: Parts, say: Callable[[str], None]
) -> list[tuple[Tensor, Batch]]:
    """The logits of a batch; in parts where memory demands it."""
    images = len(batch.images)

    def answer(count: int) -> list[tuple[Tensor, Batch]]:
        some = [batch.rows(part) for part in slices(images, count)]
        return [(subject.model(subject.to_device(b.images)).cpu().double(), b) for b in some]

    def split(count: int) -> None:
        say(went_in_parts(images, count))

    return parts.run(answer, images, split) if images else []


def _each(logits: Tensor, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Each image's negative log-likelihood, and whether its label is the likeliest answer."""
    if batch.labels is None:
        raise NotApplicable("needs labels; these images have none")
    target = batch.labels if batch.targets is None else batch.targets.double()
    lost = cross_entropy(logits, target, reduction="none")
    return lost.numpy(), (logits.argmax(1) == batch.labels).double().numpy()
