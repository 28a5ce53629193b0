"""Ten silhouettes as implicit functions: the first of the two cues.

Each takes coordinates with ``u`` to the right and ``v`` down, and returns the signed distance to
the outline in the same unit: negative inside, positive outside, exact at least near straight edges.
Only operations that IEEE 754 rounds correctly are used, so every machine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def radius(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The distance of each point from the origin."""
    return np.sqrt(u * u + v * v)


def disc(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A filled circle of radius 0.8."""
    return radius(u, v) - 0.8


def square(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A square of side 1.44."""
    return np.maximum(np.abs(u), np.abs(v)) - 0.72


def triangle(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """An equilateral triangle that points up, with corners at distance 1."""
    return np.maximum(v, 0.866 * np.abs(u) - 0.5 * v) - 0.5


def plus(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Two crossing bars of length 1.7 and width 0.58."""
    across, down = np.abs(u), np.abs(v)
    return np.maximum(np.maximum(across, down) - 0.85, np.minimum(across, down) - 0.29)


def ring(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A circle with a hole of half its width."""
    return np.abs(radius(u, v) - 0.645) - 0.215


def hexagram(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A star of two triangles, with six points at distance 1."""
    side, half = 0.866 * np.abs(u), 0.5 * v
    return np.minimum(np.maximum(v, side - half), np.maximum(-v, side + half)) - 0.5


def crescent(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A moon that opens to the right: one disc minus another."""
    return np.maximum(radius(u, v) - 0.88, 0.72 - radius(u - 0.46, v))


def hourglass(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Two triangles that meet in a narrow waist."""
    down = np.abs(v)
    return np.maximum(down - 0.82, 0.8 * np.abs(u) - 0.6 * down - 0.12)


def corner(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The letter L: a square without its upper right part."""
    return np.maximum(np.maximum(np.abs(u), np.abs(v)) - 0.78, np.minimum(u + 0.24, 0.24 - v))


def arch(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A gate: half a ring on two legs."""
    return np.maximum(np.abs(radius(u, np.minimum(v + 0.1, 0)) - 0.56) - 0.25, v - 0.78)


Shape = Callable[[np.ndarray, np.ndarray], np.ndarray]

SHAPES: tuple[Shape, ...] = (
    disc,
    square,
    triangle,
    plus,
    ring,
    hexagram,
    crescent,
    hourglass,
    corner,
    arch,
)


def inside(distance: np.ndarray, pixel: np.ndarray | float) -> np.ndarray:
    """The share of a pixel inside an outline at this distance from its centre, 0 to 1."""
    cover = 0.5 - distance / pixel
    return np.clip(cover, 0, 1, out=cover)


def silhouettes(kinds: np.ndarray, u: np.ndarray, v: np.ndarray, pixel: np.ndarray) -> np.ndarray:
    """The share of each pixel that the shape of its image covers; 1 where the kind is −1."""
    cover = np.ones_like(u)
    for kind, shape in enumerate(SHAPES):
        (which,) = np.nonzero(kinds == kind)
        if len(which):
            cover[which] = inside(shape(u[which], v[which]), pixel[which])
    return cover
