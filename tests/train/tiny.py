"""A network that learns in no time: a residual convolution with batch norm, and dropout."""

import torch
from timm.layers import DropPath
from torch import nn


class Tiny(nn.Module):
    def __init__(self, num_classes: int = 10, drop_path_rate: float = 0.0, dropout: float = 0.0):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = DropPath(drop_path_rate) if drop_path_rate else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.drop(self.body(x))
        return self.head(self.dropout(x.mean((2, 3))))


def build(num_classes: int = 10, img_size: int = 32, **options: float) -> Tiny:
    return Tiny(num_classes, **options)


def smooth(num_classes: int = 10, img_size: int = 32) -> nn.Module:
    """Without batch norm: what one image gives does not depend on the others."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes),
    )  # fmt: skip


def narrow(num_classes: int = 10, img_size: int = 32) -> nn.Module:
    """With a batch norm over single numbers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.BatchNorm1d(8), nn.Linear(8, num_classes),
    )  # fmt: skip
