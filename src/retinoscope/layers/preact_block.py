"""The block of pre-activation ResNets (He et al., 2016, arXiv:1603.05027)."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from retinoscope.layers.dropout import MonteCarloDropout

Convolutions = Literal["basic", "bottleneck"]


class PreActBlock(nn.Module):
    """BN, ReLU, convolution: two times (basic: 3×3, 3×3) or three (bottleneck: 1×1, 3×3, 1×1).

    The skip connection is the input or, if the shape changes, a 1×1 convolution of the first
    activation.
    Dropout, if any, comes before the last convolution.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        kind: Convolutions,
        stride: int = 1,
        drop_path: float = 0.0,
        mc_dropout: float = 0.0,
        always: bool = True,
    ) -> None:
        super().__init__()
        bottleneck = kind == "bottleneck"
        out = width * 4 if bottleneck else width
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = conv(channels, width, 1 if bottleneck else 3, 1 if bottleneck else stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride if bottleneck else 1)
        self.bn3 = nn.BatchNorm2d(width) if bottleneck else None
        self.conv3 = conv(width, out, 1) if bottleneck else None
        self.dropout = MonteCarloDropout(mc_dropout, always) if mc_dropout else nn.Identity()
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        changes = stride != 1 or channels != out
        self.shortcut = conv(channels, out, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """The state after the block."""
        active = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        branch = F.relu(self.bn2(self.conv1(active)))
        if self.bn3 is None or self.conv3 is None:
            branch = self.conv2(self.dropout(branch))
        else:
            branch = self.conv3(self.dropout(F.relu(self.bn3(self.conv2(branch)))))
        return skip + self.drop_path(branch)


def conv(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the map's size, except for its stride."""
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
