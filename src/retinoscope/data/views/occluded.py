"""Images of which some patches are hidden (Naseer et al., 2021, arXiv:2105.10497)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import check, setting

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class Occluded:
    """A random share of the patches of a regular grid is painted over; labels stay."""

    share: float = setting(0.5, "Share of the patches that is hidden.")
    grid: int = setting(14, "Patches along each side.")
    colour: float = setting(0.0, "What hidden patches are painted with; 0 is black, 1 is white.")
    seed: int = setting(0, "Random seed of which patches are hidden.")

    def __post_init__(self) -> None:
        check(self, "occluded")
        if not (0 <= self.share <= 1 and 0 <= self.colour <= 1 and self.grid >= 1):
            raise ValueError(f"share and colour are from 0 to 1, grid is 1 or more; got {self}.")

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
