"""Accuracy, NLL and calibration of a network, from sums that can be added over processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from retinoscope.numerics.calibration import bin_sums, expected_calibration_error
from retinoscope.train.feed import plain_batches
from retinoscope.train.images import LabelledImages
from retinoscope.train.processes import Processes

_BATCH = 256


def score(
    model: nn.Module,
    images: LabelledImages,
    processes: Processes,
    say: Callable[[str], None],
) -> dict[str, float | int]:
    """Accuracy, NLL and ECE of a model that takes pixels, in eval mode and in full precision.

    Every process evaluates its share of the images; all of them return the same values.
    """
    like = next(model.parameters())
    was_training = model.training
    model.eval()
    share = range(processes.rank, len(images), processes.world)
    # float64, because the order of summation depends on the number of processes.
    plain = torch.zeros(3, dtype=torch.float64)
    bins = torch.zeros(3, 15, dtype=torch.float64)
    with torch.inference_mode():
        for pixels, labels in plain_batches(images, share, _BATCH, say):
            logits = model(pixels.to(like.device, like.dtype)).cpu().double()
            confidence, predicted = logits.softmax(-1).max(-1)
            correct = predicted == labels
            lost = cross_entropy(logits, labels, reduction="sum")
            plain += torch.stack([torch.tensor(float(len(labels))).double(), correct.sum(), lost])
            bins += bin_sums(confidence, correct)
    model.train(was_training)
    plain, bins = processes.add(plain), processes.add(bins)
    return summarised(plain, bins)


def summarised(plain: Tensor, bins: Tensor) -> dict[str, float | int]:
    """The scores of a log row, from the sums (images, correct, loss) and those of the bins."""
    images, correct, lost = plain.tolist()
    return {
        "accuracy": correct / images,
        "nll": lost / images,
        "ece": expected_calibration_error(bins),
        "images": int(images),
    }
