"""Corrupted images (Hendrycks & Dietterich, 2019, arXiv:1903.12261)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinoscope.core.settings import MAX_SEED, check, setting
from retinoscope.data.corruptions import CORRUPTIONS, Corruption

if TYPE_CHECKING:
    from retinoscope.core.view import Label


@dataclass(frozen=True)
class Corrupted:
    """One type of corruption at one severity; labels do not change."""

    type: Corruption = setting("gaussian_noise", "Type of the corruption.")
    severity: int = setting(3, "From 1, barely visible, to 5.", at_least=1, at_most=5)
    seed: int = setting(0, "Random seed of what is drawn.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "corrupted")

    def see(
        self, image: np.ndarray, label: Label, draw: np.random.Generator
    ) -> tuple[np.ndarray, Label]:
        """The corrupted image, rounded to the 256 levels that a file would hold."""
        seen = CORRUPTIONS[self.type](image, self.severity, draw)
        return (seen.clip(0, 1) * 255).round().astype(np.float32) / np.float32(255), label
