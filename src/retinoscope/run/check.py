"""Checks that model and data are reproducible, before hours are spent on measuring them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from retinoscope.core.errors import EmptyResult, NotDeterministic
from retinoscope.core.probe import Needs
from retinoscope.core.result import Result
from retinoscope.core.subject import Batch, Split, Subject
from retinoscope.models.drawing import drawing, drawn_walk

_FEW = 4


def check_deterministic(subject: Subject, needs: Needs) -> list[str]:
    """Read a few images twice and run them twice; raise an error that names what differs.

    Returns warnings about values that are reproducible but not finite.
    """
    split = subject.split(needs)
    _check_mode(subject.backbone, subject.name)
    batch = _check_data(split, needs.split)
    if batch is None:
        return []
    images = subject.to_device(batch.images)
    with torch.inference_mode():
        once, again = (drawn_walk(subject, 0, batch.indices, images, frozenset()) for _ in range(2))
        first = [state.raw for state in once]
        for unit, before, state in zip(subject.anatomy, first, again, strict=True):
            if not _same(before, state.raw):
                raise NotDeterministic(
                    f"{subject.name}: two passes over the same images differ from unit "
                    f"{unit.name!r} onwards. Something in it is random in eval mode (functional "
                    "dropout with training=True, noise, random pooling); make it depend on "
                    "self.training"
                    + (
                        "."
                        if subject.passes
                        else ", or ask for seeded passes: --passes 8 (in Python passes=8)."
                    )
                )
        answers = []
        for _ in range(2):
            with drawing(subject, 0, batch.indices):
                answers.append(subject.model(images))
        if subject.passes:
            _check_draws(subject, batch, images, answers[0])
        if not _same(*answers):
            raise NotDeterministic(
                f"{subject.name}: the model returns different logits for the same images, "
                "although the states of all units are identical. Does a hook or counter modify it?"
            )
    return _not_finite(subject, first, answers[0])


def _not_finite(subject: Subject, states: Sequence[Tensor], answers: Tensor) -> list[str]:
    """A warning that names the first unit whose state has NaN or infinite values."""
    named = [(f"unit {u.name!r}", s) for u, s in zip(subject.anatomy, states, strict=True)]
    for where, state in (*named, ("output", answers)):
        finite = torch.isfinite(state)
        if finite.all():
            continue
        images = int((~finite.flatten(1).all(1)).sum())
        return [
            f"{subject.name}: the state of {where} is NaN or infinite for {images} of "
            f"{len(state)} images, and so is everything computed from it. Check the weights, "
            "--mean and --std; with float16, try --precision float32: it overflows later."
        ]
    return []


def check_result(result: Result, subject: Subject, needs: Needs) -> None:
    """Raise ``EmptyResult`` for a result without any finite number."""
    drawn = [name for name, f in result.described().items() if f.metadata["figure"]]
    arrays = {name: np.asarray(array) for name, array in result.arrays().items()}
    shown = [arrays[name] for name in drawn or arrays]
    numbers = [array for array in shown if array.size and array.dtype.kind in "fc"]
    plain = [v for k, v in result.values().items() if k not in ("protocol", "coverage")]
    if not any(array.size for array in shown) and all(v in (None, 0, "", ()) for v in plain):
        raise EmptyResult(
            f"measured nothing in {subject.name}: the result is empty. Use more images (--images, "
            "in Python images=…) or select other units."
        )
    if numbers and not any(np.isfinite(array).any() for array in numbers):
        raise EmptyResult(
            " ".join([
                f"found no finite number in {subject.name}: every measured value is NaN or "
                "infinite.",
                *check_deterministic(subject, needs),
            ])
        )  # fmt: skip


def _check_draws(subject: Subject, batch: Batch, images: Tensor, together: Tensor) -> None:
    """Check that an image gets the same output alone as in a batch with the same seed."""
    for row, index in enumerate(batch.indices):
        with drawing(subject, 0, (index,)):
            alone = subject.model(images[row : row + 1])
        if not torch.allclose(alone, together[row : row + 1], rtol=1e-3, atol=1e-4):
            raise NotDeterministic(
                f"{subject.name}: an image gets a different output alone than in a batch, "
                "although both passes have the same seed. Some random numbers are not drawn per "
                "image, for example noise on weights, so the passes cannot be repeated."
            )


def _check_mode(model: nn.Module, name: str) -> None:
    """Raise if a module that depends on the mode (dropout, batch norm) is in training mode."""
    training = Counter(
        type(module).__name__
        for module in model.modules()
        if module.training and not list(module.children()) and _depends_on_mode(module)
    )
    if training:
        listed = ", ".join(f"{count} {kind}" for kind, count in training.items())
        raise NotDeterministic(
            f"{name} is in training mode: {listed}. Dropout would be active, and batch norm would "
            "use and update batch statistics. Call model.eval() first."
        )


def _depends_on_mode(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return any(word in name for word in ("drop", "batchnorm", "bn", "instancenorm"))


def _check_data(split: Split, name: str) -> Batch | None:
    """A few images, read once together and once one by one; raise if they differ."""
    indices = [round(i * (len(split) - 1) / (_FEW - 1)) for i in range(_FEW)] if len(split) else []
    indices = sorted(set(indices))
    together = list(split.batches(indices, _FEW))
    alone = list(split.batches(indices, 1))
    if not together or not len(together[0].images):
        return None
    (batch,) = together
    again = torch.cat([single.images for single in alone])
    if not _same(batch.images, again):
        raise NotDeterministic(
            f"The images of the split {name!r} change when they are read again. Switch off "
            "shuffling and random augmentation in your Dataset; retinoscope applies its own "
            "augmentation, seeded by (seed, index)."
        )
    if batch.labels is not None:
        labels = torch.cat([s.labels for s in alone if s.labels is not None])
        if not _same(batch.labels, labels):
            raise NotDeterministic(
                f"The labels of the split {name!r} change when they are read again. Switch off "
                "shuffling in your Dataset."
            )
    return batch


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
