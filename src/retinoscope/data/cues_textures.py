"""Ten textures as implicit functions: the second of the two cues.

Each takes coordinates in periods, with ``u`` to the right and ``v`` down, and a key that only the
irregular texture needs. It returns the signed distance to the border between the two colours in
periods, positive in the first colour. Only operations that IEEE 754 rounds correctly are used, so
every machine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from retinoscope.data.cues_shapes import inside, radius


def centred(x: np.ndarray) -> np.ndarray:
    """The position of each point in its period, from −0.5 to 0.5."""
    return x - np.floor(x) - 0.5


def wave(x: np.ndarray) -> np.ndarray:
    """A triangle wave of period 1 and slope ±1, from −0.25 to 0.25."""
    return np.abs(centred(x)) - 0.25


def rows(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Horizontal stripes."""
    return wave(v)


def columns(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Vertical stripes."""
    return wave(u)


def diagonals(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Stripes that rise to the right."""
    return wave(0.7071 * (u + v))


def checks(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """A chessboard."""
    across, down = wave(0.8 * u), wave(0.8 * v)
    return np.maximum(np.minimum(across, down), -np.maximum(across, down))


def dots(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Discs on a square lattice."""
    return 0.31 - radius(centred(u), centred(v))


def ripples(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Concentric rings about the origin."""
    return wave(radius(u, v))


def mesh(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Thin lines that cross."""
    return 0.15 - np.minimum(np.abs(centred(u)), np.abs(centred(v)))


def zigzag(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Horizontal stripes that go up and down at right angles."""
    return 0.7071 * wave(v + 2 * wave(0.5 * u))


def bricks(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Thin lines around bricks, with every other row shifted by half a brick."""
    shifted = 0.5 * u + 0.5 * np.floor(v + 0.5)
    return 0.14 - np.minimum(2 * np.abs(centred(shifted)), np.abs(centred(v)))


def blotches(u: np.ndarray, v: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Irregular patches: a smooth random field with a threshold at its middle."""
    u, v = 1.6 * u, 1.6 * v
    left, top = np.floor(u), np.floor(v)
    right, low = smooth(u - left), smooth(v - top)
    column, row = left.astype(np.int32).view(np.uint32), top.astype(np.int32).view(np.uint32)
    edges = []
    for below in (0, 1):
        line = mixed((row + np.uint32(below)) ^ key)
        near, far = (unit(mixed(line ^ (column + np.uint32(step)))) for step in (0, 1))
        edges.append(near + right * (far - near))
    return edges[0] + low * (edges[1] - edges[0]) - 0.5


def smooth(x: np.ndarray) -> np.ndarray:
    """A step from 0 to 1 with zero slope at both ends (smoothstep)."""
    return x * x * (3 - 2 * x)


def mixed(x: np.ndarray) -> np.ndarray:
    """A one-to-one hash of 32-bit numbers (lowbias32)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def unit(x: np.ndarray) -> np.ndarray:
    """The upper 24 bits of 32-bit numbers as float32 in [0, 1), exact."""
    return (x >> np.uint32(8)).view(np.int32).astype(np.float32) * 2.0**-24


Texture = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

# In the order of the shapes: textures that need much area are paired with large shapes.
TEXTURES: tuple[Texture, ...] = (
    blotches,
    mesh,
    bricks,
    checks,
    dots,
    ripples,
    rows,
    zigzag,
    diagonals,
    columns,
)


def weaves(
    kinds: np.ndarray, u: np.ndarray, v: np.ndarray, key: np.ndarray, pixel: np.ndarray
) -> np.ndarray:
    """The share of each pixel that has the first colour; 1 where the kind is −1."""
    share = np.ones_like(u)
    for kind, texture in enumerate(TEXTURES):
        (which,) = np.nonzero(kinds == kind)
        if len(which):
            distance = texture(u[which], v[which], key[which])
            share[which] = inside(-distance, pixel[which])
    return share


def grains(keys: np.ndarray, height: int, width: int) -> Iterator[np.ndarray]:
    """Noise of the three channels in turn: integers from 0 to 1023 as float32 (n, H, W)."""
    place = mixed(np.arange(height * width, dtype=np.uint32)).reshape(1, height, width)
    bits = mixed(place ^ keys[:, None, None])
    for channel in range(3):
        noise = (bits >> np.uint32(10 * channel)) & np.uint32(1023)
        yield noise.view(np.int32).astype(np.float32)
