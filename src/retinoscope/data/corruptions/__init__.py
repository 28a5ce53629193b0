"""Corruptions of images, one family per file (Hendrycks & Dietterich, 2019, arXiv:1903.12261).

Each takes an image (H, W, C), float32 in [0, 1], a severity from 1 to 5 and a random generator, and
returns the corrupted image, not yet clipped. Constants are those of ImageNet-C. To add a
type, write a function in the file of its family and add its name below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from retinoscope.data.corruptions import digital, noise

Corruption = Literal[
    "gaussian_noise", "shot_noise", "impulse_noise", "brightness", "contrast", "pixelate",
    "jpeg_compression",
]  # fmt: skip
"""The available types; those of ImageNet-C that blur, warp or imitate weather are missing."""

Corrupt = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

CORRUPTIONS: dict[str, Corrupt] = {
    name: getattr(noise if hasattr(noise, name) else digital, name) for name in get_args(Corruption)
}
