"""Covariance of the points of feature maps with their centre point, over images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def centre_of(height: int, width: int) -> tuple[int, int]:
    """Row and column of the centre; the later of two on even maps.

    Example:
        >>> centre_of(5, 8)
        (2, 4)
    """
    return height // 2, width // 2


def centre_products(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over images of products with the centre point, and of squares: two tensors (H, W).

    Of deviations from the mean over images, averaged over channels. Divided by the number of images
    minus 1, they are the unbiased covariance with the centre and the unbiased variance.

    Example:
        >>> import torch
        >>> maps = torch.tensor([[[[1.0, 3.0]]], [[[0.0, 1.0]]]])  # the centre is the second point
        >>> [sums.tolist() for sums in centre_products(maps)]
        [[[1.0, 2.0]], [[0.5, 2.0]]]
    """
    _, channels, height, width = maps.shape
    row, column = centre_of(height, width)
    points = maps.flatten(2)
    # In the order of memory, where a mean over images is ten times faster.
    channels_last = points.stride(1) < points.stride(2)
    stored = points.mT if channels_last else points
    flat = stored.flatten(1)
    deviation = (flat - flat.mean(0)).view(stored.shape)
    deviation = deviation.mT if channels_last else deviation
    centre = deviation[:, :, row * width + column].contiguous()
    products = (centre[:, None] @ deviation).sum((0, 1))
    squares = deviation.square_().sum((0, 1))
    both = (products / channels, squares / channels)
    return both[0].reshape(height, width), both[1].reshape(height, width)


def correlation_with_centre(products: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Correlation of each point (H, W) with the centre point, from −1 to 1.

    It is 0 for a point that does not vary, and NaN everywhere if the centre does not vary.
    """
    own = squares[centre_of(*squares.shape)]
    if own <= 0:
        return np.full(squares.shape, np.nan)
    both = np.sqrt(squares * own)
    return np.divide(products, both, out=np.zeros_like(both), where=both > 0)


def by_distance(values: np.ndarray) -> np.ndarray:
    """Means over the points (H, W) at each distance from the centre, from 0 on.

    The distance is the larger of those along rows and columns: the reach of a square kernel.

    Example:
        >>> by_distance(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist()
        [5.0, 3.2]
    """
    row, column = centre_of(*values.shape)
    rows, columns = np.indices(values.shape)
    distance = np.maximum(np.abs(rows - row), np.abs(columns - column)).ravel()
    return np.bincount(distance, values.ravel()) / np.bincount(distance)


def correlation_length(curve: np.ndarray) -> tuple[float, bool]:
    """The distance at which a curve that starts at 1 falls below 1/e, and whether it does.

    Interpolated linearly; if it does not fall below, the largest distance, which is a lower bound.

    Example:
        >>> correlation_length(np.array([1.0, 0.5, 0.0])), correlation_length(np.array([1.0, 0.9]))
        ((1.2642411176571153, True), (1.0, False))
    """
    below = np.flatnonzero(curve < 1 / np.e)
    if not below.size:
        return float(len(curve) - 1), False
    last = int(below[0])
    before, after = curve[last - 1], curve[last]
    return float(last - 1 + (before - 1 / np.e) / (before - after)), True
