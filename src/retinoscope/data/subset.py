"""Fixed selections of images, balanced over classes as far as possible."""

from __future__ import annotations

import numpy as np


def balanced_subset(
    labels: np.ndarray | None, total: int, images: int | None, seed: int = 0
) -> np.ndarray:
    """Indices of ``images`` images, in ascending order; of all images if it is None.

    Every class contributes equally many images, as far as it has them. With the same seed, a larger
    selection contains every smaller one.

    Example:
        >>> balanced_subset(np.array([0, 0, 0, 0, 1, 2]), 6, 3).tolist()
        [0, 4, 5]
    """
    if images is None or images >= total:
        return np.arange(total)
    order = np.random.Generator(np.random.Philox(seed)).permutation(total)
    if labels is None:
        return np.sort(order[:images])
    shuffled = np.asarray(labels)[order]
    by_class = np.argsort(shuffled, kind="stable")
    _, starts, counts = np.unique(shuffled[by_class], return_index=True, return_counts=True)
    rank = np.empty(total, dtype=np.int64)
    rank[by_class] = np.arange(total) - np.repeat(starts, counts)
    # The first of every class, then the second of every class, and so on.
    return np.sort(order[np.argsort(rank, kind="stable")[:images]])


def evenness(labels: np.ndarray, chosen: np.ndarray) -> tuple[bool, str]:
    """Whether every class has the same number of chosen images, and a description in words.

    Args:
        labels: The class of every image that could be chosen; -1 for none.
        chosen: The classes of the chosen images.

    Example:
        >>> evenness(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 2]))
        (True, 'the same number of every class')
        >>> evenness(np.arange(400), np.arange(64))
        (False, 'from 64 of 400 classes, 1 each')
    """
    classes = np.unique(labels[labels >= 0])
    counts = np.bincount(np.searchsorted(classes, chosen[chosen >= 0]), minlength=len(classes))
    if not counts.any():
        return False, ""
    present = counts[counts > 0]
    least, most = int(present.min()), int(present.max())
    each = f"{least}" if least == most else f"{least} or {most}" if most - least == 1 else (
        f"{least} to {most}"
    )  # fmt: skip
    if len(present) < len(classes):
        return False, f"from {len(present)} of {len(classes)} classes, {each} each"
    if least == most:
        return True, "the same number of every class"
    if most - least == 1:
        return False, f"{each} of every class"
    return False, f"as even over classes as they have images, {each} of each"


def class_fraction(labels: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """Indices of a share of each class, in ascending order: int(n · fraction) of n images.

    Every class contributes at least one image. With the same seed, a larger share contains every
    smaller one.

    Example:
        >>> class_fraction(np.array([0, 0, 0, 0, 1, 1]), 0.5).tolist()
        [0, 3, 4]
    """
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(labels))
    shuffled = np.asarray(labels)[order]
    chosen = []
    for label in np.unique(shuffled):
        own = order[shuffled == label]
        chosen.append(own[: max(1, int(len(own) * fraction + 1e-9))])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
