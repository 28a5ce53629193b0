"""Attention within windows (Park & Kim, 2022, arXiv:2202.06709, fig. D.4; after Liu et al., 2021).

A map is divided into windows that do not overlap; each position attends to the positions of its own
window, with a learned bias for every relative position. The authors' code shares one table of
biases among all heads; here each head has its own, as in Swin, unless ``tables="shared"``.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tables = Literal["per_head", "shared"]


class LocalAttention(nn.Module):
    """Maps (N, C, H, W) → (N, out, H, W); any height and width.

    If windows do not fit, the map is padded at the bottom and on the right, and the padding is
    hidden from every query.
    """

    def __init__(
        self,
        channels: int,
        out: int | None = None,
        heads: int = 3,
        head_width: int = 64,
        window: int = 7,
        tables: Tables = "per_head",
    ) -> None:
        super().__init__()
        if tables not in get_args(Tables):
            raise ValueError(f"tables is one of {', '.join(get_args(Tables))}; got {tables!r}.")
        if min(heads, head_width, window) < 1:
            raise ValueError(
                f"heads, head_width and window must be at least 1; got {heads}, {head_width}, "
                f"{window}."
            )
        self.heads, self.head_width, self.window, self.tables = heads, head_width, window, tables
        self.qkv = nn.Linear(channels, 3 * heads * head_width, bias=False)
        self.proj = nn.Linear(heads * head_width, channels if out is None else out)
        side = 2 * window - 1
        self.relative_bias = nn.Parameter(
            torch.empty(1 if tables == "shared" else heads, side, side)
        )
        nn.init.normal_(self.relative_bias, std=0.02)

    def bias(self) -> Tensor:
        """The bias that is added to the logits (heads or 1, query, key), by relative position.

        Query (i, j) and key (k, l) of a window read the table at (i - k, j - l), from
        1 - window to window - 1 along both axes.
        """
        p = self.window
        table = self.relative_bias.unfold(1, p, 1).unfold(2, p, 1)  # [h, i, j, p-1-k, p-1-l]
        return table.flip(3, 4).reshape(-1, p * p, p * p)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each window, then project."""
        images, _, height, width = x.shape
        p, down, right = self.window, -x.shape[2] % self.window, -x.shape[3] % self.window
        bias: Tensor = self.bias()
        if down or right:
            x = F.pad(x, (0, right, 0, down))
            hidden = _padding(height, width, p, x)
            bias = (bias + hidden[:, None, None]).repeat(images, 1, 1, 1)
        rows, columns = (height + down) // p, (width + right) // p
        windows = x.reshape(images, -1, rows, p, columns, p).permute(0, 2, 4, 3, 5, 1)
        qkv = self.qkv(windows.reshape(images * rows * columns, p * p, -1))
        mixed = self._attend(qkv, bias).transpose(1, 2).flatten(2)
        maps = self.proj(mixed).reshape(images, rows, columns, p, p, -1)
        maps = maps.permute(0, 5, 1, 3, 2, 4).reshape(images, -1, rows * p, columns * p)
        return maps[..., :height, :width] if down or right else maps

    def _attend(self, qkv: Tensor, bias: Tensor) -> Tensor:
        """(N, heads, positions, width), from projections (N, positions, 3 · heads · width)."""
        shaped = qkv.unflatten(2, (3, self.heads, self.head_width))
        q, k, v = shaped.permute(2, 0, 3, 1, 4).unbind(0)
        if not self.training:
            bias = bias if bias.ndim == 4 else bias[None]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        # With a trainable bias, the fused kernel falls back to one that is slower than this.
        logits = torch.add(bias, q @ k.transpose(-2, -1), alpha=self.head_width**-0.5)
        return logits.softmax(-1) @ v

    def extra_repr(self) -> str:
        """The settings, for printing."""
        tables = ", tables=shared" if self.tables == "shared" else ""
        return f"heads={self.heads}, head_width={self.head_width}, window={self.window}{tables}"


def _padding(height: int, width: int, window: int, like: Tensor) -> Tensor:
    """-inf for positions of a window outside the map, else 0: (windows, positions)."""
    rows, columns = -(-height // window), -(-width // window)
    y = torch.arange(rows * window, device=like.device) >= height
    x = torch.arange(columns * window, device=like.device) >= width
    outside = (y[:, None] | x).view(rows, window, columns, window).transpose(1, 2)
    hidden = torch.zeros(rows * columns, window * window, device=like.device, dtype=like.dtype)
    return hidden.masked_fill(outside.reshape(rows * columns, -1), float("-inf"))
