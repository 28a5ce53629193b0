"""How similar two sets of units represent the same images: HSIC and common neighbours.

CKA of mini-batches (Nguyen et al., 2021, arXiv:2010.15327) is the mean of the unbiased HSIC (Song
et al., 2012) over groups, divided by the root of the means of both sides' own. In its U-centred
form (Székely & Rizzo, 2014) the HSIC of many units with many others is one matrix product, and
that of a unit with itself is a sum of squares, which cannot be negative.
"""

from __future__ import annotations

import numpy as np

FEWEST = 4
"""The unbiased HSIC is only defined for this many images or more."""


def u_centred(kernels: np.ndarray) -> np.ndarray:
    """Kernel matrices (units, n, n) whose rows sum to 0 without the diagonal, which is 0.

    Example:
        >>> centred = u_centred(np.random.default_rng(0).normal(size=(1, 5, 5)))
        >>> bool(np.allclose(centred.sum(1), 0)), float(np.trace(centred[0]))
        (True, 0.0)
    """
    images = kernels.shape[1]
    if images < FEWEST:
        raise ValueError(f"The unbiased HSIC needs at least {FEWEST} images; got {images}.")
    found = (kernels + kernels.transpose(0, 2, 1)) / 2
    diagonal = np.arange(images)
    found[:, diagonal, diagonal] = 0
    sums = found.sum(2) / (images - 2)
    total = sums.sum(1) / (images - 1)
    found -= sums[:, :, None] + sums[:, None, :] - total[:, None, None]
    found[:, diagonal, diagonal] = 0
    return found


def hsic(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The unbiased HSIC of each of one side's units with each of the other's.

    Args:
        mine: U-centred matrices (units, n, n).
        theirs: The same of the other side.
    """
    images = mine.shape[1]
    product = mine.reshape(len(mine), -1) @ theirs.reshape(len(theirs), -1).T
    return product / (images * (images - 3))


def own_hsic(mine: np.ndarray) -> np.ndarray:
    """The unbiased HSIC of each unit with itself (units,)."""
    images = mine.shape[1]
    return np.einsum("uij,uij->u", mine, mine) / (images * (images - 3))


def permuted_hsic(mine: np.ndarray, theirs: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """:func:`hsic` after the images of one side are permuted (permutations, units, others).

    Args:
        mine: U-centred matrices (units, n, n).
        theirs: The same of the other side.
        permutations: Indices of the images (permutations, n), the same for all units.
    """
    return np.stack([hsic(mine, theirs[:, order][:, :, order]) for order in permutations])


def shared_neighbours(mine: np.ndarray, theirs: np.ndarray, count: int) -> np.ndarray:
    """The mean share of the nearest ``count`` images that both sides have in common.

    Args:
        mine: Whether image j is a neighbour of i (units, n, n).
        theirs: The same of the other side.
        count: The number of neighbours of an image.
    """
    one, other = (side.reshape(len(side), -1).astype(np.float32) for side in (mine, theirs))
    return (one @ other.T).astype(np.float64) / (mine.shape[1] * count)


def cka(both: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """CKA from means over groups: of the HSIC of both sides, and of each side with itself."""
    return both / np.sqrt(np.outer(mine, theirs))


def calibrated(score: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The score above the level that unrelated features reach: (s − τ) / (1 − τ), at least 0."""
    return np.maximum(0.0, (score - level) / (1 - level))
