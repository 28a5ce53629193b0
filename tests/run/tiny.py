"""A network that is quick to take apart, as a file that other processes can build it from."""

import torch
from torch import nn


class Tiny(nn.Module):
    """A stem, a residual convolution, a strided one and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.down = nn.Conv2d(6, 8, 2, stride=2)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x)
        x = self.down(x).relu()
        return self.head(x.mean((2, 3)))


def build(img_size: int = 16) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Tiny()
