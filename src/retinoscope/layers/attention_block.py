"""The MSA unit of AlterNet (Park & Kim, 2022, arXiv:2202.06709, fig. 3 and section 4)."""

from __future__ import annotations

from timm.layers import DropPath
from torch import Tensor, nn

from retinoscope.layers.local_attention import LocalAttention, Tables


class AttentionBlock(nn.Module):
    """Maps (N, C, H, W) → the same shape: BN, GELU, 1×1 convolution, BN, local attention, skip.

    The convolution reduces the channels by ``reduction`` (4 in bottleneck networks, 1 in basic
    ones); attention expands them again. No MLP follows: the next convolutional unit has that role.
    """

    def __init__(
        self,
        channels: int,
        reduction: int = 4,
        heads: int = 3,
        head_width: int = 64,
        window: int = 7,
        tables: Tables = "per_head",
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        width = channels // reduction
        self.bn1 = nn.BatchNorm2d(channels)
        self.act = nn.GELU()
        self.conv = nn.Conv2d(channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.attn = LocalAttention(width, channels, heads, head_width, window, tables)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The state after the block."""
        return x + self.drop_path(self.attn(self.bn2(self.conv(self.act(self.bn1(x))))))


class ChannelsLast(nn.Module):
    """A block for maps (N, C, H, W) in a network that stores them as (N, H, W, C)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """The output of the block, in the original memory format."""
        return self.block(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
