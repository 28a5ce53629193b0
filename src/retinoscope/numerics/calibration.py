"""Calibration: confidence compared with accuracy (Guo et al., 2017, arXiv:1706.04599).

Confidences are sorted into bins of equal width. Each batch is reduced to a table of sums, and the
tables of batches are added, so that the result does not depend on how images are split into batches
or processes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def bin_sums(confidence: Tensor, correct: Tensor, bins: int = 15) -> Tensor:
    """Count, sum of confidences and number correct of each bin: float64, (3, bins).

    Bin b of B contains the confidences in ((b - 1)/B, b/B]; the first also contains 0. Add the
    tables of several batches to get that of all.

    Args:
        confidence: The probability of the predicted class, from 0 to 1, shape (N,).
        correct: Whether the prediction is correct, shape (N,).
        bins: The number of bins.

    Example:
        >>> bin_sums(torch.tensor([0.25, 0.5, 1.0]), torch.tensor([True, False, True]), bins=2)
        tensor([[2.0000, 1.0000],
                [0.7500, 1.0000],
                [1.0000, 1.0000]], dtype=torch.float64)
    """
    values, right = _checked(confidence, correct, bins)
    inside = _members(torch.bucketize(values, _edges(values, bins)), bins)
    return torch.stack([_sums(inside, torch.ones_like(values)), _sums(inside, values),
                        _sums(inside, right)])  # fmt: skip


def expected_calibration_error(sums: Tensor) -> float:
    """The mean absolute difference of confidence and accuracy over the bins, weighted by counts.

    Example:
        >>> sure, half = torch.ones(4), torch.tensor([True, True, False, False])
        >>> expected_calibration_error(bin_sums(sure, half))
        0.5
    """
    return ((sums[1] - sums[2]).abs().sum() / _count(sums)).item()


def signed_calibration_error(sums: Tensor) -> float:
    """Mean confidence minus accuracy: above 0 is over-confident, below 0 under-confident.

    Example:
        >>> signed_calibration_error(bin_sums(torch.tensor([0.75]), torch.tensor([True])))
        -0.25
    """
    return ((sums[1] - sums[2]).sum() / _count(sums)).item()


def authors_calibration_error(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    """The expected calibration error as in the code of Park & Kim (2022, arXiv:2202.06709).

    Only for comparison with published numbers, which use 10 bins. Counts and accuracies use bins
    (a, b], but confidences use bins [a, b). A confidence of exactly 1 is thus counted and adds
    nothing, so a saturated network looks as if it had no confidence at all.

    Example:
        >>> sure, wrong = torch.ones(4), torch.zeros(4)
        >>> authors_calibration_error(sure, wrong)
        0.0
        >>> expected_calibration_error(bin_sums(sure, wrong))
        1.0
    """
    values, right = _checked(confidence, correct, bins)
    # As in that code, 0 is below the first bin (a, b], and 1 is above the last bin [a, b).
    right, values, above = right[values > 0], values[values > 0], values[values < 1]
    edges = _edges(values, bins)
    inside = _members(torch.bucketize(values, edges), bins)
    counts = _sums(inside, torch.ones_like(values))
    confidences = _sums(_members(torch.bucketize(above, edges, right=True), bins), above)
    apart = (_sums(inside, right) - confidences).abs()
    # An empty bin has no weight, even if confidences are on its lower edge.
    return (apart[counts > 0].sum() / _count(counts[None])).item()


def _checked(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Both inputs in double precision, if the device supports it."""
    if bins < 1:
        raise ValueError(f"The number of bins must be at least 1; got {bins}.")
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise ValueError(
            "Confidences and correctness must both have shape (N,); got "
            f"{tuple(confidence.shape)} and {tuple(correct.shape)}."
        )
    # Apple's GPU has no double precision.
    device = "cpu" if confidence.device.type == "mps" else confidence.device
    double = {"device": device, "dtype": torch.float64}
    return confidence.detach().to(**double), correct.detach().to(**double)


def _edges(values: Tensor, bins: int) -> Tensor:
    """The edges between the bins, without 0 and 1."""
    return torch.arange(1, bins, dtype=values.dtype, device=values.device) / bins


def _members(indices: Tensor, bins: int) -> Tensor:
    """Which value belongs to which bin: (bins, N)."""
    return indices == torch.arange(bins, device=indices.device)[:, None]


def _sums(inside: Tensor, values: Tensor) -> Tensor:
    # Not bincount: with weights it is not deterministic on a GPU.
    return torch.where(inside, values, 0.0).sum(1)


def _count(sums: Tensor) -> Tensor:
    count = sums[0].sum()
    if not count:
        raise ValueError("The calibration error of zero images is not defined; all counts are 0.")
    return count
