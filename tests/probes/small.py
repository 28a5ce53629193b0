"""Small networks of each family at order one, exported once in a run for all tests of probes."""

from __future__ import annotations

from functools import cache
from typing import Any

import timm
import torch
from torch import nn

from retinoscope.core.subject import Subject
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.run.subject import load_subject

NETWORKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "cnn": ("resnet18", {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}, 32),
    "vit": (
        "vit_tiny_patch16_224",
        {"img_size": 16, "patch_size": 4, "embed_dim": 12, "num_heads": 3, "depth": 2},
        16,
    ),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "patch_size": 4, "embed_dim": 12, "num_heads": (2, 4), "depths": (2, 1),
         "window_size": 4},
        32,
    ),
}  # fmt: skip


class Averaging(nn.Module):
    """Two residual units that move every token by ``share`` towards the mean of 4 × 4 positions.

    HFC is multiplied by 1 − share and LFC stays, for whatever images.
    """

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, stride=4)
        self.share = share
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for _ in range(2):
            weights = torch.softmax(0 * x @ x.transpose(1, 2), -1)
            x = x + self.share * (weights @ x - x)
        return self.head(x.mean(1))


class Logits(nn.Module):
    """A network of transformers whose logits are its output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, image):
        return self.inner(image).logits


@cache
def small(family: str, precision: str = "float64", images: int = 6) -> Subject:
    """A network of ``cnn``, ``vit``, ``swin`` or ``own`` on a few cues; leave it as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "own":
            name, model, size = "own", Averaging(), 16
        else:
            name, options, size = NETWORKS[family]
            model = timm.create_model(name, **options)
    model = draw_at_order_one(model).eval()
    settings = {"size": (size, size), "images": images, "precision": precision}
    return load_subject(model, "cues", name=name, **settings)
