"""Attention within a window around each position: convolutional self-attention.

Park & Kim, 2022, "How Do Vision Transformers Work?", arXiv:2202.06709, figure 7.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Outside = Literal["absent", "zero"]


def neighbourhood_mask(
    height: int,
    width: int,
    kernel: int,
    prefix: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The additive mask (N, N) of a window: 0 where a query may see a key, −∞ elsewhere.

    N = ``prefix`` + ``height`` · ``width``; rows are queries and columns are keys, both in
    row-major order. Windows are cut off at the border. Prefix tokens see everything and are seen by
    all.

    Args:
        height: Rows of the map.
        width: Columns of the map.
        kernel: Side of the window, odd: a query sees (``kernel`` − 1) / 2 positions each way.
        prefix: Tokens before the map that have no position in it, such as a class token.
        device: Device of the mask.
        dtype: The type of the queries. Default: torch's default.

    Example:
        >>> neighbourhood_mask(1, 3, kernel=3)
        tensor([[0., 0., -inf],
                [0., 0., 0.],
                [-inf, 0., 0.]])
    """
    _check_kernel(kernel)
    if height < 1 or width < 1 or prefix < 0:
        raise ValueError(
            f"A mask needs a map of at least 1×1 and no negative prefix; got {height}×{width} "
            f"and a prefix of {prefix}."
        )
    rows, columns = _near(height, kernel, device), _near(width, kernel, device)
    near = rows[:, None, :, None] & columns[None, :, None, :]
    mask = torch.zeros(near.shape, device=device, dtype=dtype).masked_fill(~near, -torch.inf)
    return F.pad(mask.reshape(height * width, height * width), (prefix, 0, prefix, 0))


class NeighbourhoodAttention(nn.Module):
    """Multi-head attention on maps: (N, C, H, W) → (N, C, H, W), each query within its window.

    Queries, keys, values and the output are 1×1 convolutions, so the same weights work for any
    window and any size of map. The mask is computed for the size of the input.

    Args:
        dim: Channels C.
        heads: Number of heads; must divide ``dim``.
        kernel: Side of the window, odd; None for attention over the whole map.
        qkv_bias: Whether queries, keys and values have a bias. The output always has one.
        outside: The content of a window beyond the border. ``absent``: nothing. ``zero``: as in the
            authors' code, keys and values of zero, which receive attention with a logit of 0.
        attn_drop: Dropout of the attention weights.
        proj_drop: Dropout after the output.
        device: Device of the weights.
        dtype: Type of the weights.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kernel: int | None,
        qkv_bias: bool = False,
        outside: Outside = "absent",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"{dim} channels cannot be divided equally among {heads} heads.")
        if kernel is not None:
            _check_kernel(kernel)
        if outside not in get_args(Outside):
            raise ValueError(f"outside is one of {get_args(Outside)}; got {outside!r}.")
        self.heads, self.kernel, self.outside = heads, kernel, outside
        self.qkv = nn.Conv2d(dim, 3 * dim, 1, bias=qkv_bias, device=device, dtype=dtype)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Conv2d(dim, dim, 1, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """The branch's maps, (N, C, H, W)."""
        batch, dim, height, width = x.shape
        tokens = self.qkv(x).reshape(batch, 3, self.heads, dim // self.heads, height * width)
        query, key, value = tokens.transpose(-2, -1).unbind(1)
        mask = None
        if self.kernel is not None:
            mask = neighbourhood_mask(height, width, self.kernel, 0, query.device, query.dtype)
            if self.outside == "zero":
                beyond = _beyond(height, width, self.kernel, query.device, query.dtype)
                mask = torch.cat((mask, beyond[:, None]), dim=1)
                key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        dropout = self.attn_drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        maps = mixed.transpose(-2, -1).reshape(batch, dim, height, width)
        return self.proj_drop(self.proj(maps))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"heads={self.heads}, kernel={self.kernel}, outside={self.outside!r}"


def _check_kernel(kernel: int) -> None:
    if isinstance(kernel, bool) or not isinstance(kernel, int) or kernel < 1 or kernel % 2 == 0:
        raise ValueError(
            "A window is centred on its query, so its side must be an odd number of at least 1; "
            f"got {kernel!r}. For a window that covers the whole map, pass kernel=None to "
            "NeighbourhoodAttention, or an odd kernel of at least 2 · side − 1."
        )


def _near(length: int, kernel: int, device: torch.device | str | None) -> Tensor:
    """Whether two positions on a line see each other, (length, length)."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place[None, :]).abs() <= (kernel - 1) // 2


def _beyond(
    height: int, width: int, kernel: int, device: torch.device | str, dtype: torch.dtype
) -> Tensor:
    """The log of the number of positions of each query's window beyond the border, (H · W,).

    n keys with a logit of 0 have the same weight as one with log n: a single token of zeros with
    this mask represents all of them exactly, and log 0 = −∞ hides it from windows inside the map.
    """
    inside = _near(height, kernel, device).sum(1)[:, None] * _near(width, kernel, device).sum(1)
    return (kernel**2 - inside).flatten().to(torch.float64).log().to(dtype)
