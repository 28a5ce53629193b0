"""The shape of a path from the inner products of its points alone.

A path of T points in a space of millions of dimensions is known up to a rotation by its Gram matrix
(T, T). The points may be taken about any origin; the nearer it lies to them, the less is lost to
rounding. Differences that rounding alone would explain count as none.
"""

from __future__ import annotations

import numpy as np

_ROUNDING = 64 * np.finfo(np.float64).eps
"""Share of squared lengths that sums in double precision may lose."""


def principal_plane(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points in the plane in which they vary most, and the share of variance of its directions.

    Principal components of the points, centred over them (Li et al., 2018, arXiv:1712.09913,
    section 7). The sign of a direction is such that the point farthest from the end is positive.

    Args:
        gram: Inner products of the points, shape (T, T).

    Returns:
        Coordinates about the last point, shape (T, 2), and two shares; these are NaN where all
        points are one.

    Example:
        >>> points = np.array([[3.0, 0, 0], [1, 0, 0], [0, 0, 0]])
        >>> coordinates, explained = principal_plane(points @ points.T)
        >>> coordinates.round(6).tolist(), explained.round(6).tolist()
        ([[3.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    """
    centred = gram - gram.mean(0) - gram.mean(1, keepdims=True) + gram.mean()
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    noise = len(gram) * _ROUNDING * np.diag(gram).max()
    values = np.where(values > noise, values, 0.0)[::-1]
    coordinates = vectors[:, ::-1][:, :2] * np.sqrt(values[:2])
    coordinates = coordinates - coordinates[-1]
    total = values.sum()
    explained = values[:2] / total if total else np.full(2, np.nan)
    return coordinates * _signs(coordinates) + 0.0, explained  # no -0.0


def polar(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance and direction of each point as seen from the last one, in terms of the first.

    With d = w - w_end, r = ‖d‖ / ‖d_init‖ and θ is the angle between d and d_init (Park & Kim,
    2022, arXiv:2202.06709, fig. 1b).

    Args:
        gram: Inner products of the points, shape (T, T).

    Returns:
        r and θ in radians, shape (T,) each. θ is NaN at the end itself, which lies in no direction;
        both are NaN where the path ends where it began.

    Example:
        >>> points = np.array([[2.0, 0], [0, 1], [0, 0]])
        >>> radius, angle = polar(points @ points.T)
        >>> radius.tolist(), angle.round(4).tolist()
        ([1.0, 0.5, 0.0], [0.0, 1.5708, nan])
    """
    about = gram - gram[-1] - gram[:, -1:] + gram[-1, -1]
    noise = _ROUNDING * (np.diag(gram) + gram[-1, -1])
    squares = np.where(np.diag(about) > noise, np.diag(about), np.nan)
    radius = np.sqrt(squares / squares[0])
    angle = np.arccos(np.clip(about[:, 0] / np.sqrt(squares * squares[0]), -1, 1))
    if np.isfinite(squares[0]):
        radius = np.nan_to_num(radius, nan=0.0)
    return radius, angle


def lengths(gram: np.ndarray) -> np.ndarray:
    """How far it is from each point to the next, shape (T - 1,).

    Example:
        >>> points = np.array([[0.0, 0], [3, 4], [3, 4], [3, 5]])
        >>> lengths(points @ points.T).tolist()
        [5.0, 0.0, 1.0]
    """
    return np.sqrt(np.diag(_steps(gram)))


def turns(gram: np.ndarray) -> np.ndarray:
    """By what angle each step leaves the direction of the one before, in radians, shape (T - 1,).

    A step of no length has no direction: it is passed over and gets NaN, as does the first one.

    Example:
        >>> points = np.array([[0.0, 0], [1, 0], [1, 0], [1, 2]])
        >>> turns(points @ points.T).round(4).tolist()
        [nan, nan, 1.5708]
    """
    steps = _steps(gram)
    squares = np.diag(steps)
    found = np.full(len(steps), np.nan)
    moving = np.flatnonzero(squares)
    before, after = moving[:-1], moving[1:]
    cosines = steps[before, after] / np.sqrt(squares[before] * squares[after])
    found[after] = np.arccos(np.clip(cosines, -1, 1))
    return found


def _steps(gram: np.ndarray) -> np.ndarray:
    """Inner products of the steps (T - 1, T - 1); squares that rounding alone explains are 0."""
    steps = gram[1:, 1:] - gram[1:, :-1] - gram[:-1, 1:] + gram[:-1, :-1]
    # The ends of each step set its noise: steps near the origin are known better than those far.
    noise = _ROUNDING * (np.diag(gram)[1:] + np.diag(gram)[:-1])
    np.fill_diagonal(steps, np.where(np.diag(steps) > noise, np.diag(steps), 0.0))
    return steps


def _signs(coordinates: np.ndarray) -> np.ndarray:
    """1 or -1 for each column, by the first of its entries that is as large as any."""
    sizes = np.abs(coordinates)
    # Two points may be equally far but for rounding; which one decides must not hang on that.
    first = np.argmax(sizes >= (1 - 1e-9) * sizes.max(0), axis=0)
    return np.where(coordinates[first, np.arange(coordinates.shape[1])] < 0, -1.0, 1.0)
