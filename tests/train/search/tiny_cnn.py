"""A CNN with room for one attention unit that is quick to take apart, and images for it."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor, nn

TINY_CNN = f"{Path(__file__).absolute()}:build:img_size=16"
RECIPE = {
    "epochs": 2, "warmup": 0, "batch": 8, "optimiser": "adamw", "lr": 0.01, "schedule": "constant",
    "seed": 3,
}  # fmt: skip


class Block(nn.Module):
    """A convolution with a skip connection, or with a stride."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if before == width else 2
        self.conv = nn.Conv2d(before, width, 3, self.stride, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x)).relu()
        return out if self.stride == 2 else x + out


class TinyCnn(nn.Module):
    """A stem, a strided unit, one that keeps its shape, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.down = Block(6, 8)
        self.last = Block(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.down(self.stem(x))).mean((2, 3)))


def build(img_size: int = 16) -> nn.Module:
    return TinyCnn()


def write_images(folder: Path) -> str:
    """Darker and brighter noise: 24 images of each to train on, 7 to test on."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 7)):
        for name, level in (("dark", 118), ("bright", 124)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.normal(level, 90, (16, 16, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return str(folder)
