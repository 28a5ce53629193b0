"""Images with some patches hidden (Naseer et al., 2021, arXiv:2105.10497)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import MAX_SEED, check, setting

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class Occluded:
    """Random patches of a regular grid are painted over; labels do not change."""

    share: float = setting(0.5, "Share of the patches that is hidden.", at_least=0, at_most=1)
    grid: int = setting(14, "Patches along each side.", at_least=1)
    colour: float = setting(
        0.0, "Colour of hidden patches; 0 is black, 1 is white.", at_least=0, at_most=1
    )
    seed: int = setting(0, "Random seed of which patches are hidden.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "occluded")

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """The image with ``round(share · grid²)`` of its patches hidden."""
        patches = self.grid**2
        hidden = np.zeros(patches, dtype=bool)
        hidden[draw.permutation(patches)[: round(self.share * patches)]] = True
        rows, columns = (np.arange(side) * self.grid // side for side in image.shape[:2])
        mask = hidden.reshape(self.grid, self.grid)[rows][:, columns]
        return np.where(mask[..., None], np.float32(self.colour), image), label
