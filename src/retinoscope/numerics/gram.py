"""Gram matrices of a group of images, and the kernels and rankings that follow from them.

The features are centred before they are multiplied: the unbiased HSIC does not change if a vector
is added to all features, but sums of large numbers would lose the digits that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

_NOTHING = 1e-12
"""Features count as constant if their squared deviations are smaller than this share of their
squared mean: so much remains of equal numbers in single precision."""
_MANY, _BLOCKS = 128, 4
"""From so many rows on, a product is computed in blocks of rows; four blocks save 3/8 of it."""


def bordered_gram(features: Tensor) -> Tensor:
    """All inner products of the centred features of n images, of their mean and of a row of ones.

    One product gives everything that kernels and correlations need.

    Args:
        features: (n, D).

    Returns:
        (n + 2, n + 2); the last two rows are those of the mean and of the ones.

    Example:
        >>> bordered_gram(torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
        tensor([[ 5., -5., -6., -3.],
                [-5.,  5.,  6.,  3.],
                [-6.,  6.,  8.,  4.],
                [-3.,  3.,  4.,  2.]])
    """
    images, width = features.shape
    rows = features.new_empty(images + 2, width)
    torch.mean(features, 0, out=rows[images])
    torch.sub(features, rows[images], out=rows[:images])
    rows[images + 1] = 1
    return _inner_products(rows)


def _inner_products(rows: Tensor) -> Tensor:
    """All inner products of rows; of many rows, only those below the diagonal are computed."""
    count = len(rows)
    if count < _MANY:
        return rows @ rows.T
    found = rows.new_empty(count, count)
    edges = [count * block // _BLOCKS for block in range(_BLOCKS + 1)]
    for start, stop in pairwise(edges):
        block = rows[start:stop] @ rows[:stop].T
        found[start:stop, :stop] = block
        found[:start, start:stop] = block[:, :start].T
    return found


@dataclass(frozen=True)
class Grams:
    """Gram matrices of several units for the same images, in double precision."""

    centred: np.ndarray
    """(units, n, n): inner products of features from which the mean over images is subtracted."""
    mean: np.ndarray
    """(units, n): inner products of the centred features with the mean."""
    square: np.ndarray
    """(units,): the squared norm of the mean."""
    sums: np.ndarray
    """(units, n): the sum of each image's own features, not centred."""
    width: np.ndarray
    """(units,): the number of features."""

    @classmethod
    def of(cls, bordered: np.ndarray) -> Grams:
        """From stacked outputs of :func:`bordered_gram` (units, n + 2, n + 2)."""
        stack = np.asarray(bordered, dtype=np.float64)
        return cls(
            centred=stack[:, :-2, :-2],
            mean=stack[:, :-2, -2],
            square=stack[:, -2, -2],
            sums=stack[:, :-2, -1] + stack[:, -2:-1, -1],
            width=stack[:, -1, -1],
        )

    @property
    def images(self) -> int:
        """The number of images."""
        return self.centred.shape[1]

    @property
    def constant(self) -> np.ndarray:
        """Whether the features of a unit are equal for all images, up to rounding (units,)."""
        spread = np.einsum("uii->u", self.centred)
        return spread <= _NOTHING * self.images * self.square

    def kernel(self, width: float | None = None) -> np.ndarray:
        """The kernel matrices (units, n, n): linear, or a Gaussian.

        Args:
            width: Standard deviation of the Gaussian as a multiple of the median distance between
                two images of the group; None for the linear kernel.
        """
        if width is None:
            return self.centred
        squares = self.distances
        upper = np.triu_indices(self.images, 1)
        median = np.median(squares[:, upper[0], upper[1]], axis=1)
        scale = np.where(median > 0, median, 1.0)[:, None, None]
        return np.exp(-squares / (2 * width**2 * scale))

    @property
    def distances(self) -> np.ndarray:
        """Squared Euclidean distances between images (units, n, n)."""
        own = np.einsum("uii->ui", self.centred)
        return np.maximum(own[:, :, None] + own[:, None, :] - 2 * self.centred, 0)

    def neighbours(self, count: int) -> np.ndarray:
        """Whether image j is one of the nearest ``count`` images of image i (units, n, n).

        Nearest are those with the largest cosine of the centred features (the image itself
        excluded); of equal ones the first.
        """
        own = np.sqrt(np.maximum(np.einsum("uii->ui", self.centred), np.finfo(float).tiny))
        cosine = self.centred / (own[:, :, None] * own[:, None, :])
        cosine[:, np.arange(self.images), np.arange(self.images)] = -np.inf
        nearest = np.argsort(-cosine, axis=2, kind="stable")[:, :, :count]
        found = np.zeros(cosine.shape, dtype=bool)
        np.put_along_axis(found, nearest, True, axis=2)
        return found

    def dissimilarities(self) -> np.ndarray:
        """1 − Pearson correlation over features of each pair of images (units, pairs)."""
        raw = (
            self.centred + self.mean[:, :, None] + self.mean[:, None, :]
            + self.square[:, None, None]
        )  # fmt: skip
        products = raw - self.sums[:, :, None] * self.sums[:, None, :] / self.width[:, None, None]
        own = np.sqrt(np.maximum(np.einsum("uii->ui", products), np.finfo(float).tiny))
        upper = np.triu_indices(self.images, 1)
        return 1 - (products / (own[:, :, None] * own[:, None, :]))[:, upper[0], upper[1]]
