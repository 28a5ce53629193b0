"""Rank correlation."""

from __future__ import annotations

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """The ranks of values along the last axis, from 0; equal values share their mean rank.

    Example:
        >>> ranks(np.array([3.0, 1.0, 3.0, 2.0]))
        array([2.5, 0. , 2.5, 1. ])
    """
    one, other = values[..., :, None], values[..., None, :]
    return (one > other).sum(-1) + ((one == other).sum(-1) - 1) / 2


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the last axis; NaN if one side is constant.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([[1.0, 8.0, 9.0], [2.0, 2.0, 2.0]]))
        array([ 1., nan])
    """
    a, b = (one - one.mean(-1, keepdims=True) for one in (ranks(x), ranks(y)))
    norm = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.divide((a * b).sum(-1), norm, out=np.full(norm.shape, np.nan), where=norm > 0)
