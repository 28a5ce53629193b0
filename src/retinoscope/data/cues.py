"""Synthetic images with two cues: does a model rely on shape or on texture?

Each of the ten classes has its own silhouette and its own texture. A model is trained on images
where both agree and tested on images where they conflict, as Geirhos et al. (ICLR 2019,
arXiv:1811.12231) do with ImageNet models. Mirroring an image does not change its class.

Every random number is a hash of seed, split, image index and its own index, and all arithmetic is
rounded according to IEEE 754, so an image has the same bits on every machine, alone or in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from retinoscope.core.errors import RetinoscopeError, did_you_mean
from retinoscope.data.cues_shapes import SHAPES, inside, silhouettes
from retinoscope.data.cues_textures import TEXTURES, grains, weaves
from retinoscope.data.source import UnknownData

VERSION: int = 1
"""Increased with every change of a pixel or a label, so that old measurements are not reused."""

SPLITS: Mapping[str, int] = MappingProxyType(
    {"train": 50_000} | dict.fromkeys(("test", "conflict", "shape_only", "texture_only"), 10_000)
)

_TEN = len(SHAPES)
_NUMBERS = 72
_PIXELS_AT_ONCE = 1 << 16
_GOLDEN = 0x9E3779B97F4A7C15


class ImpossibleCues(RetinoscopeError, ValueError):
    """The requested size or number of images is impossible."""


@dataclass(frozen=True)
class Cues:
    """The images of one split, each drawn when it is read.

    Attributes:
        split: ``train`` and ``test`` (shape and texture of the same class), ``conflict`` (of two
            classes; the label is the shape's), ``shape_only`` (a plain silhouette) or
            ``texture_only`` (the texture everywhere).
        size: Height and width in pixels, or one number for both. The picture is the same at every
            size except for the noise, which is drawn per pixel.
        seed: Random seed; each seed gives other images.
        images: Number of images, the first ones of the split. Default: 50,000 for ``train``,
            10,000 for the others.

    Example:
        >>> cues = Cues("conflict", size=(48, 32), images=20)
        >>> cues.read(3).shape, cues.name(3)
        ((48, 32, 3), 'cues/conflict/3')
        >>> [cues.classes[cues.attributes[cue][3]] for cue in ("shape", "texture")]
        ['corner + diagonals', 'crescent + rows']
    """

    split: str = "train"
    size: tuple[int, int] | int = 32
    seed: int = 0
    images: int | None = None

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UnknownData(
                f"Cues have no split {self.split!r}. {did_you_mean(self.split, list(SPLITS))}"
                f"There are: {', '.join(SPLITS)}."
            )
        if len(self.resolution) != 2 or min(self.resolution) < 1:
            raise ImpossibleCues(
                f"Cues cannot be drawn in size {self.size!r}. Give a height and a width of at "
                "least one pixel, or one number for both, such as 32."
            )
        if self.images is not None and self.images < 1:
            raise ImpossibleCues(
                f"There cannot be {self.images} images of cues. Give at least 1, or None for all "
                f"{SPLITS[self.split]} of {self.split}."
            )

    @property
    def resolution(self) -> tuple[int, int]:
        """Height and width of every image in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def classes(self) -> tuple[str, ...]:
        """The silhouette and the texture of each class."""
        return tuple(
            f"{shape.__name__} + {texture.__name__}"
            for shape, texture in zip(SHAPES, TEXTURES, strict=True)
        )

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        """The classes of ``shape`` and ``texture``, int64 (N,); −1 where there is none."""
        return self._attributes

    @cached_property
    def _attributes(self) -> Mapping[str, np.ndarray]:
        labels = self._balanced()
        kinds = {"shape": labels, "texture": labels}
        if self.split == "conflict":
            ahead = _hashed(self._keys(np.arange(len(self))), 0) % np.uint64(_TEN - 1)
            kinds["texture"] = (labels + 1 + ahead.astype(np.int64)) % _TEN
        elif self.split == "shape_only":
            kinds["texture"] = np.full(len(self), -1, np.int64)
        elif self.split == "texture_only":
            kinds["shape"] = np.full(len(self), -1, np.int64)
        for kind in kinds.values():
            kind.flags.writeable = False
        return kinds

    @property
    def labels(self) -> np.ndarray:
        """The class of the shape, or of the texture where there is no shape."""
        return self.attributes["texture" if self.split == "texture_only" else "shape"]

    @property
    def fingerprint(self) -> str:
        """Everything that the images depend on, as text."""
        height, width = self.resolution
        drawn = f"{self.split}, {height}×{width}, seed {self.seed}, {len(self)} images"
        return f"cues version {VERSION}, {drawn}"

    def __len__(self) -> int:
        return SPLITS[self.split] if self.images is None else self.images

    def name(self, index: int) -> str:
        """The name of an image: its split and its index."""
        return f"cues/{self.split}/{index}"

    def digest(self, index: int) -> bytes:
        """Empty: the fingerprint covers everything that an image depends on."""
        return b""

    def read(self, index: int) -> np.ndarray:
        """One image, uint8 (H, W, 3)."""
        return self.read_many([index])[0]

    def read_many(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Images in the requested order, uint8 (n, H, W, 3); much faster than one by one."""
        asked = np.asarray(indices, dtype=np.int64)
        missing = asked[(asked < 0) | (asked >= len(self))]
        if len(missing):
            raise IndexError(f"There is no {self.name(missing[0])} among {len(self)} images.")
        images = np.empty((len(asked), *self.resolution, 3), np.uint8)
        # In small chunks, so that intermediate arrays stay in the processor's cache.
        step = max(1, _PIXELS_AT_ONCE // math.prod(self.resolution))
        for start in range(0, len(asked), step):
            part = asked[start : start + step]
            shape, texture = self.attributes["shape"][part], self.attributes["texture"][part]
            paint(self._keys(part), shape, texture, images[start : start + step])
        return images

    def _keys(self, indices: np.ndarray) -> np.ndarray:
        """One 64-bit key per index, from which all random numbers of that image are derived."""
        key = np.array([self.seed % 2**64], np.uint64)
        key = _hashed(_hashed(key, 0), list(SPLITS).index(self.split))
        return _hashed(key, indices.astype(np.uint64))

    def _balanced(self) -> np.ndarray:
        """Labels in which every ten images contain each class once, in random order."""
        blocks = -(-len(self) // _TEN)
        # Block indices start far above image indices, so that their keys differ.
        keys = self._keys(np.arange(blocks * _TEN) + 2**40).reshape(blocks, _TEN)
        return np.argsort(keys, axis=1, kind="stable").reshape(-1)[: len(self)].astype(np.int64)


def paint(keys: np.ndarray, shape: np.ndarray, texture: np.ndarray, out: np.ndarray) -> None:
    """Draw one image per key into ``out``, uint8 (n, H, W, 3). Internal arrays are (n, 3, H, W)."""
    height, width = out.shape[1:3]
    numbers = Numbers(keys)
    x = ((2 * np.arange(width, dtype=np.float32) + 1) / width - 1).reshape(1, 1, 1, -1)
    y = ((2 * np.arange(height, dtype=np.float32) + 1) / height - 1).reshape(1, 1, -1, 1)
    pixel = 2 / math.sqrt(height * width)
    ground = numbers.between(0.1, 0.9, 3)
    image = _backdrop(numbers, ground, x, y, pixel)
    x, y = x - numbers.between(-0.3, 0.3), y - numbers.between(-0.3, 0.3)
    cover = _silhouette(numbers, shape, x, y, pixel)
    fill = _filling(numbers, texture, ground, x, y, pixel)
    fill -= image
    fill *= cover
    image += fill
    _develop(numbers, image, keys, out)


class Numbers:
    """Uniform random numbers for some images, each used once and always in the same order."""

    def __init__(self, keys: np.ndarray) -> None:
        table = _hashed(keys[:, None], np.arange(1, _NUMBERS + 1, dtype=np.uint64))
        self._table = _unit(table)[:, :, None, None]
        self._used = 0

    def between(self, low: float, high: float, count: int = 1) -> np.ndarray:
        """Numbers from ``low`` to ``high``, float32 (n, count, 1, 1)."""
        first = self._used
        self._used += count
        return low + (high - low) * self._table[:, first : self._used]

    def turn(self, x: np.ndarray, y: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates rotated by up to about ``2 * limit`` radians in either direction."""
        # A rational function of the half-angle tangent: sines differ between processors.
        half = self.between(-limit, limit)
        norm = 1 + half * half
        cosine, sine = (1 - half * half) / norm, 2 * half / norm
        return cosine * x + sine * y, cosine * y - sine * x


def _backdrop(
    numbers: Numbers, ground: np.ndarray, x: np.ndarray, y: np.ndarray, pixel: float
) -> np.ndarray:
    """A colour gradient with soft patches and sharp bars on it."""
    slope = numbers.between(-0.25, 0.25, 3) * x + numbers.between(-0.25, 0.25, 3) * y
    image = ground + slope
    for _ in range(2):
        across = (x - numbers.between(-1, 1)) * numbers.between(1.2, 3)
        down = (y - numbers.between(-1, 1)) * numbers.between(1.2, 3)
        _lay(image, np.maximum(1 - across * across - down * down, 0), numbers)
    for _ in range(3):
        across, down = x - numbers.between(-1, 1), y - numbers.between(-1, 1)
        across, down = numbers.turn(across, down, 1)
        across = np.abs(across) - numbers.between(0.05, 0.2)
        down = np.abs(down) - numbers.between(0.1, 0.5)
        _lay(image, inside(np.maximum(across, down), pixel), numbers)
    return image


def _lay(image: np.ndarray, cover: np.ndarray, numbers: Numbers) -> None:
    """Blend a random colour into ``image``, weighted by ``cover``."""
    colour = numbers.between(0, 1, 3) - image
    colour *= cover
    image += colour


def _silhouette(
    numbers: Numbers, shape: np.ndarray, x: np.ndarray, y: np.ndarray, pixel: float
) -> np.ndarray:
    """The share of each pixel that the shape covers; 1 for images without a shape."""
    u, v = numbers.turn(x, y, 0.2)
    scale = numbers.between(0.6, 0.9)
    aspect = numbers.between(0.87, 1.15)
    return silhouettes(shape, u / (scale * aspect), v / scale * aspect, pixel / scale)


def _filling(
    numbers: Numbers,
    texture: np.ndarray,
    ground: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    pixel: float,
) -> np.ndarray:
    """Two colours arranged by the texture; one colour for images without a texture."""
    u, v = numbers.turn(x, y, 0.1)
    period = numbers.between(0.3, 0.5)
    u = u / period + numbers.between(-1, 1)
    v = v / period + numbers.between(-1, 1)
    key = numbers.between(0, 2**24).astype(np.uint32)
    first, second = _pair(ground, numbers)
    return second + weaves(texture, u, v, key, pixel / period) * (first - second)


def _pair(ground: np.ndarray, numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """A colour that differs from the background, and a second one at a random distance from it."""
    # Steps around a circle of brightness values keep a distance in every channel for any start.
    steps = numbers.between(0.2, 0.4, 3), numbers.between(0.6, 0.8, 3)
    first, second = (ground + step - np.floor(ground + step) for step in steps)
    return first, first + numbers.between(0.2, 1) * (second - first)


def _develop(numbers: Numbers, image: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
    """Apply brightness, contrast and noise to the whole image, and write it as bytes."""
    contrast = 255 * numbers.between(0.55, 1)
    bright = 127.5 - 0.5 * contrast + 255 * numbers.between(-0.1, 0.1) + 0.5
    grain = numbers.between(0.02, 0.09) * (255 / 512)
    image *= contrast
    image += bright - 511.5 * grain
    noise = grains((keys >> np.uint64(32)).astype(np.uint32), *out.shape[1:3])
    for channel, plane in enumerate(noise):
        plane *= grain[:, 0]
        plane += image[:, channel]
        out[..., channel] = np.clip(plane, 0, 255, out=plane)


def _hashed(key: np.ndarray, count: np.ndarray | int) -> np.ndarray:
    """The number at index ``count`` in the sequence of each key, uint64 (splitmix64)."""
    # Always an array: a scalar would warn about the overflow, which is intended here.
    x = key + (np.atleast_1d(np.asarray(count, np.uint64)) + np.uint64(1)) * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _unit(x: np.ndarray) -> np.ndarray:
    """The upper 24 bits of 64-bit numbers as float32 in [0, 1), exact."""
    return (x >> np.uint64(40)).astype(np.float32) * 2.0**-24
