"""Sensor and transmission noise."""

from __future__ import annotations

import numpy as np


def gaussian_noise(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Gaussian noise, as in low light: the same standard deviation everywhere."""
    std = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return image + std * draw.standard_normal(image.shape, np.float32)


def shot_noise(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Photon noise: the variance is proportional to the intensity."""
    photons = (60, 25, 12, 5, 3)[severity - 1]
    return (draw.poisson(image.astype(np.float64) * photons) / photons).astype(np.float32)


def impulse_noise(image: np.ndarray, severity: int, draw: np.random.Generator) -> np.ndarray:
    """Salt and pepper: some values become 0 or 1, both equally often."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    hit, salt = draw.random((2, *image.shape)) < np.array([share, 0.5]).reshape(2, 1, 1, 1)
    return np.where(hit, salt.astype(np.float32), image)
