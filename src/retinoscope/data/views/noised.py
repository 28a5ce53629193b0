"""Images with white Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import MAX_SEED, check, setting

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class Noised:
    """White Gaussian noise added to every channel of every pixel; labels do not change."""

    std: float = setting(0.1, "Standard deviation of the noise; pixels are in [0, 1].", at_least=0)
    clip: bool = setting(True, "Keep pixels in [0, 1], as a camera would.")
    seed: int = setting(0, "Random seed of the noise.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "noised")

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """The image plus noise."""
        seen = image + self.std * draw.standard_normal(image.shape, np.float32)
        return (seen.clip(0, 1) if self.clip else seen), label
