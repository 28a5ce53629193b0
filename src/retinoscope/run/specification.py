"""What determines a subject, as plain values that another process can be sent."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from retinoscope.core.errors import WrongInput
from retinoscope.data.augment import Augmentation

Precision = Literal["float32", "float64", "bfloat16", "float16"]


@dataclass(frozen=True)
class SubjectSpecification:
    """All that determines a subject, as plain values: another process rebuilds it from this."""

    model: str
    data: str = "cues"
    root: str | None = None
    images: int | None = 512
    """A class-balanced choice of so many per split; None for all."""
    size: tuple[int, int] | None = None
    """Of the images; the model's own if None."""
    pretrained: bool = True
    weights: str | None = None
    allow_pickle: bool = False
    output: str | None = None
    seed: int = 0
    precision: Precision | None = None
    """float32 for a named model, what it has for one of your own, if None."""
    device: str | None = None
    """The best there is for a named model, where it is for one of your own, if None."""
    batch: int = 64
    workers: int = 0
    crop_pct: float | None = None
    crop_mode: str | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augmentation: Augmentation | None = None
    """Of training images; as in the training of the weights if None, where that is known."""
    weight_decay: float | None = None
    """The same for weight decay; 0 where nobody knows."""
    folder: str = field(default_factory=os.getcwd, compare=False)
    """Where relative paths begin."""

    def __post_init__(self) -> None:
        wrong = [
            text
            for text, holds in (
                (f"seed {self.seed}, which must be from 0 to 2³² - 1", 0 <= self.seed < 2**32),
                (f"batch {self.batch}, which must be 1 or more", self.batch >= 1),
                (f"workers {self.workers}, which must be 0 or more", self.workers >= 0),
                (f"images {self.images}, which must be 1 or more, or None for all",
                 self.images is None or self.images >= 1),
            )
            if not holds
        ]  # fmt: skip
        if wrong:
            raise WrongInput(f"A subject cannot have {'; '.join(wrong)}.")
