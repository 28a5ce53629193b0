"""The shape of a path, computed only from the inner products of its points.

A path of T points in a space of millions of dimensions is determined up to a rotation by its Gram
matrix (T, T). Any origin can be used; the closer it is to the points, the smaller the rounding
error. Differences that rounding alone would explain are treated as zero.
"""

from __future__ import annotations

import numpy as np

_ROUNDING = 64 * np.finfo(np.float64).eps
"""Fraction of squared lengths that sums in double precision may lose."""


def principal_plane(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points in their principal plane, and the fraction of variance along its directions.

    Principal components of the points, centred over them (Li et al., 2018, arXiv:1712.09913,
    section 7). The sign of a direction is chosen so that the point farthest from the last one is
    positive.

    Args:
        gram: Inner products of the points, shape (T, T).

    Returns:
        Coordinates about the last point, shape (T, 2), and two fractions; these are NaN if all
        points are equal.

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
    """Polar coordinates of each point about the last one, relative to the first.

    With d = w - w_end, r = ‖d‖ / ‖d_init‖ and θ is the angle between d and d_init (Park & Kim,
    2022, arXiv:2202.06709, fig. 1b).

    Args:
        gram: Inner products of the points, shape (T, T).

    Returns:
        r and θ in radians, shape (T,) each. θ is NaN at the last point itself, where it is not
        defined; both are NaN if the path ends at its start.

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
    """The distance from each point to the next, shape (T - 1,).

    Example:
        >>> points = np.array([[0.0, 0], [3, 4], [3, 4], [3, 5]])
        >>> lengths(points @ points.T).tolist()
        [5.0, 0.0, 1.0]
    """
    return np.sqrt(np.diag(_steps(gram)))


def turns(gram: np.ndarray) -> np.ndarray:
    """The angle between each step and the previous one, in radians, shape (T - 1,).

    A step of length 0 has no direction: it is skipped and gets NaN, like the first step.

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
    # The noise of a step depends on its end points: steps near the origin are more accurate.
    noise = _ROUNDING * (np.diag(gram)[1:] + np.diag(gram)[:-1])
    np.fill_diagonal(steps, np.where(np.diag(steps) > noise, np.diag(steps), 0.0))
    return steps


def _signs(coordinates: np.ndarray) -> np.ndarray:
    """1 or -1 for each column, from the first of its entries of largest magnitude."""
    sizes = np.abs(coordinates)
    # Two points may be equally far except for rounding, which must not decide the sign.
    first = np.argmax(sizes >= (1 - 1e-9) * sizes.max(0), axis=0)
    return np.where(coordinates[first, np.arange(coordinates.shape[1])] < 0, -1.0, 1.0)
