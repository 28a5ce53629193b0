"""What lesions do on average over images, with paired bootstrap samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retinoscope.numerics.bootstrap import Resampled, interval_of
from retinoscope.numerics.ranks import spearman

_FEWEST = 3
"""Minimum number of lesions for a correlation."""


def damages(
    images: Mapping[str, np.ndarray], resamples: int, seed: int = 0
) -> dict[str, Resampled]:
    """The mean of each measure over images, for each lesion; all share their bootstrap samples.

    Args:
        images: ``prediction`` (N,), ``lesion_prediction``, ``kl`` and ``influence`` (N, lesions);
            with labels also ``label`` (N,) and ``nll_change`` (N, lesions).
        resamples: Number of bootstrap samples of the images.
        seed: Random seed.

    Returns:
        ``accuracy_change`` and ``nll_change``, which are NaN without labels; ``changed``, the
        fraction of predictions that change; ``kl`` and ``influence``.
    """
    before, after = images["prediction"][:, None], images["lesion_prediction"]
    accuracy = nll = np.full(after.shape, np.nan)
    if "label" in images:
        label = images["label"][:, None]
        accuracy = (after == label).astype(float) - (before == label)
        nll = images["nll_change"]
    rows = {
        "accuracy_change": accuracy, "nll_change": nll, "changed": after != before,
        "kl": images["kl"], "influence": images["influence"],
    }  # fmt: skip
    means = Resampled.of(np.stack(list(rows.values()), 1), resamples, seed)
    return {name: means[k] for k, name in enumerate(rows)}


def rank_correlation(
    damage: Resampled, influence: Resampled
) -> tuple[float | None, tuple[float, float] | None]:
    """Spearman's correlation over the lesions that have both values, and its 95 % interval.

    None for fewer than three such lesions, or if one side is constant.
    """
    known = np.isfinite(damage.values) & np.isfinite(influence.values)
    if known.sum() < _FEWEST:
        return None, None
    found = float(spearman(damage.values[known], influence.values[known]))
    if not np.isfinite(found):
        return None, None
    samples = spearman(damage.samples[:, known], influence.samples[:, known])
    low, high = interval_of(samples[np.isfinite(samples)]).tolist()
    return found, (low, high)


def by_head(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """The values of lesions called ``ATTENTION head NUMBER``, by attention.

    Example:
        >>> by_head(["a head 0", "a head 1", "b head 0"], np.array([1.0, 2.0, 3.0]))
        {'a': array([1., 2.]), 'b': array([3.])}
    """
    rows: dict[str, list[float]] = {}
    for name, value in zip(names, values, strict=False):
        rows.setdefault(str(name).rpartition(" head ")[0], []).append(float(value))
    return {name: np.array(row) for name, row in rows.items()}


def by_end(
    ends: Sequence[Sequence[tuple[int, int]]], each: Mapping[str, Resampled]
) -> dict[str, Any]:
    """Means over the first and over the last lesions of stages, and first minus last, with errors.

    Args:
        ends: By kind, the indices of the first and of the last lesion of each stage.
        each: The output of :func:`damages`.
    """
    accuracy, kl = (
        [each[name][list(some)].mean() for pairs in ends for some in zip(*pairs, strict=True)]
        for name in ("accuracy_change", "kl")
    )
    labelled = np.isfinite(each["accuracy_change"].values).any()
    # KL grows with the damage, accuracy falls.
    apart = [
        accuracy[k] - accuracy[k + 1] if labelled else kl[k + 1] - kl[k]
        for k in range(0, len(kl), 2)
    ]
    return {
        "stage_ends": np.array([float(one.values) for one in accuracy]),
        "stage_ends_error": np.array([float(one.error) for one in accuracy]),
        "stage_ends_kl": np.array([float(one.values) for one in kl]),
        "end_difference": np.array([float(one.values) for one in apart]),
        "end_difference_interval": np.array([one.interval for one in apart]).reshape(-1, 2),
    }
