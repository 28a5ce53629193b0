"""Images as a network sees them in training, the same again for the same (seed, index)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from retinoscope.core.errors import WrongInput

_PARTNER = 1
"""Marks the random numbers of the image that another is mixed with."""


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images; each draw depends on (seed, index) alone.

    ``mixup`` is the α of the Beta distribution of Zhang et al. (2018, arXiv:1710.09412); the
    partner of an image is drawn from the whole split, so that it does not depend on a batch.
    """

    crop: float = 0.125
    """Share of each side by which the image is padded with zeros and cut out again at random."""
    flip: bool = True
    mixup: float = 0.0
    smoothing: float = 0.0
    """Share of the target that is spread over all classes."""

    def __post_init__(self) -> None:
        if not 0 <= self.crop <= 0.5 or self.mixup < 0 or not 0 <= self.smoothing < 1:
            raise WrongInput(
                "An augmentation has a crop in [0, 0.5], mixup ≥ 0 and smoothing in [0, 1); "
                f"got {self}."
            )

    @property
    def soft(self) -> bool:
        """Whether targets are no longer plain labels."""
        return self.mixup > 0 or self.smoothing > 0

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for keys and protocols."""
        return asdict(self)

    def view(self, image: Tensor, seed: int, index: int, stream: int = 0) -> Tensor:
        """One image (C, H, W), cut and flipped at random."""
        random = generator(seed, index, stream)
        height, width = image.shape[-2:]
        rows, columns = round(self.crop * height), round(self.crop * width)
        top, left = int(random.integers(2 * rows + 1)), int(random.integers(2 * columns + 1))
        padded = pad(image, (columns, columns, rows, rows))
        cut = padded[:, top : top + height, left : left + width]
        return cut.flip(-1) if self.flip and random.random() < 0.5 else cut

    def mixed(
        self,
        image: Tensor,
        index: int,
        seed: int,
        total: int,
        read: Callable[[int], Tensor],
    ) -> tuple[Tensor, int, float]:
        """The augmented image, the place of its partner, and the share that is its own."""
        seen = self.view(image, seed, index)
        if not self.mixup:
            return seen, index, 1.0
        random = generator(seed, index, _PARTNER)
        share = float(random.beta(self.mixup, self.mixup))
        partner = int(random.integers(total))
        other = self.view(read(partner), seed, partner, _PARTNER)
        return share * seen + (1 - share) * other, partner, share

    def target(self, labels: tuple[int, int], share: float, outputs: int) -> Tensor:
        """The soft target (K,) of an image and its partner."""
        hot = one_hot(torch.tensor(labels), outputs).float()
        target = share * hot[0] + (1 - share) * hot[1]
        return (1 - self.smoothing) * target + self.smoothing / outputs


def generator(seed: int, index: int, stream: int = 0) -> np.random.Generator:
    """Random numbers that depend on these three alone."""
    return np.random.Generator(np.random.Philox(key=[(seed << 8) + stream, index]))
