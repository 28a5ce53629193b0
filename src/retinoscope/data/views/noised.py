"""Images with white Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import check, setting

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class Noised:
    """White Gaussian noise is added to every channel of every pixel; labels stay."""

    std: float = setting(0.1, "Standard deviation of the noise; pixels are in [0, 1].")
    clip: bool = setting(True, "Keep pixels in [0, 1], as a camera would.")
    seed: int = setting(0, "Random seed of the noise.")

    def __post_init__(self) -> None:
        check(self, "noised")
        if self.std < 0:
            raise ValueError(f"std is 0 or more; got {self.std}.")

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """The image plus noise."""
        seen = image + self.std * draw.standard_normal(image.shape, np.float32)
        return (seen.clip(0, 1) if self.clip else seen), label
