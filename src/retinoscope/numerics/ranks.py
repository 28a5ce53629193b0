"""Rank correlation."""

from __future__ import annotations

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """The ranks of values along the last axis, from 0; equal values share their mean rank.

    Example:
        >>> ranks(np.array([3.0, 1.0, 3.0, 2.0]))
        array([2.5, 0. , 2.5, 1. ])
    """
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    index, change = np.arange(values.shape[-1]), ordered[..., 1:] != ordered[..., :-1]
    edge = np.ones((*values.shape[:-1], 1), dtype=bool)
    first = np.where(np.concatenate([edge, change], -1), index, 0)
    last = np.where(np.concatenate([change, edge], -1), index, len(index))
    lowest = np.maximum.accumulate(first, -1)
    highest = np.minimum.accumulate(last[..., ::-1], -1)[..., ::-1]
    found = np.empty(values.shape)
    np.put_along_axis(found, order, (lowest + highest) / 2, axis=-1)
    return found


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the last axis; NaN if one side is constant.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([[1.0, 8.0, 9.0], [2.0, 2.0, 2.0]]))
        array([ 1., nan])
    """
    a, b = (one - one.mean(-1, keepdims=True) for one in (ranks(x), ranks(y)))
    norm = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.divide((a * b).sum(-1), norm, out=np.full(norm.shape, np.nan), where=norm > 0)


def rank_correlations(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row of one side with each of the other's; 0 for constants.

    Example:
        >>> rank_correlations(np.array([[1.0, 2.0, 4.0]]), np.array([[3.0, 5.0, 9.0], [3, 2, 1]]))
        array([[ 1., -1.]])
    """
    one, other = _standardised(mine), _standardised(theirs)
    return one @ other.T


def _standardised(rows: np.ndarray) -> np.ndarray:
    """Ranks within each row with mean 0 and norm 1; zeros if all values are equal."""
    found = ranks(rows)
    found -= found.mean(1, keepdims=True)
    norm = np.sqrt((found**2).sum(1, keepdims=True))
    return np.divide(found, norm, out=np.zeros_like(found), where=norm > 0)
