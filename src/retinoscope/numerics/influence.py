"""How much a block changes the direction of its input (Men et al., 2024, arXiv:2403.03853)."""

from __future__ import annotations

import torch
from torch import Tensor


def block_influence(before: Tensor, after: Tensor) -> Tensor:
    """1 − cos of the channels (N, C, …) before and after, at each position: (N, positions).

    It is 0 where both vectors are zero, and 1 where only one is. It is computed as half the squared
    distance of the normalised vectors, which is exact for equal vectors and keeps its relative
    precision for small angles.

    Example:
        >>> x = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]])  # (1, 2 channels, 3 positions)
        >>> y = torch.tensor([[[0.0, 3.0, 0.0], [5.0, 0.0, 0.0]]])
        >>> block_influence(x, y)
        tensor([[1., 0., 0.]])
    """
    x, y = before.flatten(2), after.flatten(2)
    long, wide = (torch.linalg.vector_norm(v, dim=1, keepdim=True) for v in (x, y))
    one, other = (v / torch.where(n == 0, 1, n) for v, n in ((x, long), (y, wide)))
    apart = (one - other).square().sum(1) / 2
    return torch.where(((long == 0) != (wide == 0))[:, 0], 1.0, apart)
