"""Corrupted images (Hendrycks & Dietterich, 2019, arXiv:1903.12261)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import check, setting
from retinoscope.data.corruptions import CORRUPTIONS, Corruption

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class Corrupted:
    """One type of corruption at one severity; labels stay."""

    type: Corruption = setting("gaussian_noise", "Type of the corruption.")
    severity: int = setting(3, "From 1, barely visible, to 5.")
    seed: int = setting(0, "Random seed of what is drawn.")

    def __post_init__(self) -> None:
        check(self, "corrupted")
        if not 1 <= self.severity <= 5:
            raise ValueError(f"severity is from 1 to 5; got {self.severity}.")

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """The corrupted image, rounded to the 256 levels that a file would hold."""
        seen = CORRUPTIONS[self.type](image, self.severity, draw)
        return (seen.clip(0, 1) * 255).round().astype(np.float32) / np.float32(255), label
