"""A model with its normalisation in front, so that it takes images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retinoscope.anatomy.graph.answer import choose_logits
from retinoscope.core.errors import WrongInput


class Normalise(nn.Module):
    """Normalises images in [0, 1] as the model expects: (x - mean) / std per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], channels: int = 3) -> None:
        super().__init__()
        if {len(mean), len(std)} - {1, channels} or min(std) <= 0:
            raise WrongInput(
                f"Normalisation of {channels} channels needs one mean and one positive deviation, "
                f"or {channels} of each; got {tuple(mean)} and {tuple(std)}. Set both with "
                "--mean and --std (in Python mean=…, std=…)."
            )
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """The normalised images."""
        return (images - self.mean) / self.std


class PixelModel(nn.Module):
    """A model that maps images in [0, 1] to logits."""

    def __init__(self, normalise: nn.Module, backbone: nn.Module, output: str | None) -> None:
        super().__init__()
        self.normalise = normalise
        self.backbone = backbone
        self.output = output

    def forward(self, images: Tensor) -> Tensor:
        """The logits (N, K), selected from whatever the model returns."""
        return choose_logits(self.backbone(self.normalise(images)), self.output)
