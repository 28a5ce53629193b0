"""How alike the tokens of a state are: their mean against the rest, cosines, effective rank.

Tokens are given in parts (N, n, d), such as prefix tokens and positions, that are never joined:
joining them would copy the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float32).tiny


def component_norms(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Frobenius norms of HFC and LFC of each image's tokens X: two tensors (N,).

    LFC is the mean token at every token, HFC = X − LFC (Dovonon et al., 2024, arXiv:2401.04301).

    Example:
        >>> high, low = component_norms([torch.tensor([[[5.0, 4.0], [-3.0, -2.0]]])])
        >>> round(high.item(), 4), round(low.item(), 4)
        (7.0711, 2.0)
    """
    mean, count = _mean(parts)
    high = sum((part - mean).square_().sum((1, 2)) for part in parts)
    assert isinstance(high, Tensor)  # there is at least one part
    return high.sqrt(), count**0.5 * mean.square().sum((1, 2)).sqrt()


def mean_cosine(parts: Sequence[Tensor], centred: bool = False) -> Tensor:
    """Mean cosine between different tokens of each image (N,), without self-pairs.

    The sum over all pairs is the squared length of the sum of all normalised tokens, so no pair is
    formed. Tokens that are 0 have no direction and are left out; NaN if fewer than two remain.

    Example:
        >>> mean_cosine([torch.eye(3)[None], torch.tensor([[[0.0, 0.0, 2.0]]])]).item()
        0.1666666716337204
    """
    if centred:
        mean, _ = _mean(parts)
        parts = [part - mean for part in parts]
    total, count = 0.0, 0.0
    for part in parts:
        length = part.square().sum(2).sqrt_()
        count = count + length.count_nonzero(1)
        total = total + (length.clamp_min_(_TINY).reciprocal_()[:, None] @ part)[:, 0]
    assert isinstance(total, Tensor)
    assert isinstance(count, Tensor)
    pairs = (total.double().square().sum(1) - count) / (count * (count - 1.0))
    return torch.where(count > 1, pairs, torch.nan).to(total.dtype)


def mean_absolute_cosine(tokens: Tensor, centred: bool = False) -> Tensor:
    """Mean |cosine| between different tokens (N, n, d) of each image (N,), from all pairs.

    Example:
        >>> mean_absolute_cosine(torch.tensor([[[1.0, 0.0], [-2.0, 0.0]]])).item()
        1.0
    """
    found = []
    for one in tokens:  # one image at a time: its pairs may need much memory
        one = one - one.mean(0) if centred else one
        length = one.norm(dim=1)
        one = one[length > 0] / length[length > 0, None]
        count = len(one)
        pairs = (one @ one.mT).abs_().fill_diagonal_(0.0)
        found.append(
            pairs.sum() / (count * (count - 1)) if count > 1 else pairs.new_tensor(torch.nan)
        )
    return torch.stack(found)


def effective_rank(tokens: Tensor) -> Tensor:
    """Effective rank of each image's centred tokens (N, n, d), from 0 to 1: (N,).

    exp(H(σ/Σσ)) with the singular values σ, divided by min(n − 1, d), the largest rank that centred
    tokens can have (Roy & Vetterli, 2007). 0 if all tokens are equal.

    Example:
        >>> effective_rank(torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]])).item()
        0.5
    """
    centred = tokens.double()
    centred = centred - centred.mean(1, keepdim=True)
    values = torch.linalg.svdvals(centred)
    # Rounding leaves traces of what is equal.
    values = torch.where(values > 1e-12 * tokens.double().norm(dim=(1, 2))[:, None], values, 0.0)
    total = values.sum(1, keepdim=True)
    share = values / total.clamp_min(torch.finfo(torch.float64).tiny)
    rank = torch.exp(-torch.xlogy(share, share).sum(1))
    most = min(tokens.shape[1] - 1, tokens.shape[2])
    return torch.where(total[:, 0] > 0, rank, 0.0) / most


def _mean(parts: Sequence[Tensor]) -> tuple[Tensor, int]:
    """The mean token of each image (N, 1, d), and the number of tokens."""
    count = sum(part.shape[1] for part in parts)
    total = sum(part.sum(1, keepdim=True) for part in parts)
    assert isinstance(total, Tensor)
    return total / count, count
