"""White Gaussian noise in place of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import MAX_SEED, check, setting

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class GaussianImages:
    """Every channel of every pixel is an independent Gaussian number; labels stay.

    Nothing is clipped: numbers outside [0, 1] stay, so that the pixels are exactly Gaussian.
    """

    mean: float = setting(0.5, "Mean of the pixels; those of an image are in [0, 1].")
    std: float = setting(0.25, "Standard deviation of the pixels.", above=0)
    seed: int = setting(0, "Random seed of the pixels.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "gaussianimages")

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """Noise of the shape of the image."""
        noise = draw.standard_normal(image.shape, np.float32)
        return np.float32(self.mean) + np.float32(self.std) * noise, label
