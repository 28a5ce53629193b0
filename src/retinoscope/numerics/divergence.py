"""How far two outputs of a classifier are apart."""

from __future__ import annotations

import torch
from torch import Tensor


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ p (log p − log q) over the last axis, in nats; terms with p = 0 are 0.

    Example:
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> kl_divergence(half, half).item()
        0.0
        >>> round(kl_divergence(torch.tensor([1.0, 0.0]).log(), half).item(), 4)
        0.6931
    """
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_q), 0.0)
    return terms.sum(-1).clamp_min(0)  # rounding may make it slightly negative
