"""Corruptions by image processing and compression; none of them is random."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def brightness(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Higher brightness: the value (V of HSV) is raised."""
    value = image.max(-1, keepdims=True)
    raised = np.clip(value + (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1], 0, 1)
    # Hue and saturation are ratios to the value, so scaling all channels keeps them.
    return np.where(value > 0, image * raised / np.maximum(value, 1e-12), raised)


def contrast(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Lower contrast: each channel is scaled towards its mean."""
    kept = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    mean = image.mean((0, 1), keepdims=True)
    return (image - mean) * np.float32(kept) + mean


def pixelate(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Lower resolution: reduced by area averaging, then enlarged by repeating pixels."""
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[severity - 1]
    picture = _picture(image)
    small = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
    coarse = picture.resize(small, Image.Resampling.BOX)
    return _floats(coarse.resize(picture.size, Image.Resampling.NEAREST), image.shape)


def jpeg_compression(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Saved as a JPEG of low quality and read again."""
    buffer = io.BytesIO()
    _picture(image).save(buffer, "JPEG", quality=(25, 18, 15, 10, 7)[severity - 1])
    return _floats(Image.open(buffer), image.shape)


def _picture(image: np.ndarray) -> Image.Image:
    pixels = (image * 255).round().astype(np.uint8)
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def _floats(picture: Image.Image, shape: tuple[int, ...]) -> np.ndarray:
    return (np.asarray(picture, np.float32) / np.float32(255)).reshape(shape)
