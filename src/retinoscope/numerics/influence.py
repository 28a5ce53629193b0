"""How much a block changes the direction of its input (Men et al., 2024, arXiv:2403.03853)."""

from __future__ import annotations

import torch
from torch import Tensor

from retinoscope.numerics.lengths import lengths


def block_influence(before: Tensor, after: Tensor) -> Tensor:
    """1 − cos of the channels (N, C, …) before and after, at each position: (N, positions).

    It is 0 where both vectors are zero, and 1 where only one is. It is computed as half the squared
    distance of vectors of equal length, which is exact for equal vectors and keeps its relative
    precision for small angles.

    Example:
        >>> x = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]])  # (1, 2 channels, 3 positions)
        >>> y = torch.tensor([[[0.0, 4.0, 0.0], [5.0, 0.0, 0.0]]])
        >>> block_influence(x, y).round(decimals=4)
        tensor([[1., 0., 0.]])
    """
    x, y = before.flatten(2), after.flatten(2)
    a, b = lengths(x), lengths(y)
    apart = torch.addcmul(x, y, a / torch.where(b == 0, 1, b), value=-1)
    influence = (lengths(apart) / torch.where(a == 0, 1, a)).square() / 2
    return torch.where((a == 0) != (b == 0), 1.0, influence)[:, 0]
