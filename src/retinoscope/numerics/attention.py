"""Statistics of attention weights (N, W, H, Q, K): images, windows, heads, queries, keys.

Everything is measured per image and averaged over windows and queries: (N, H). The cost is that of
one logarithm per weight and a few passes over memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny
_UNEVEN = 0.02
"""Largest deviation of a row's sum from 1; half precision is off by up to 0.01."""
_FLOOR = 1e-6
"""The smallest median weight of keys, as a share of their mean, when sinks are measured."""


class AttentionStatistics(NamedTuple):
    """One value per image and head, each (N, H) in double precision."""

    entropy: Tensor
    """In nats."""
    normalised_entropy: Tensor
    """Divided by the logarithm of the number of keys that the query may see."""
    distance: Tensor
    prefix_share: Tensor
    mutual_information: Tensor
    """Between the positions of queries and keys, divided by √(H_q H_k)."""
    sink: Tensor
    """The weight that all queries together give to one key: largest / median over keys."""


def attention_statistics(
    weights: Tensor,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
    distance: Tensor | None = None,
    choices: Tensor | None = None,
) -> AttentionStatistics:
    """Entropy, distance, share of prefix tokens, mutual information and sinks.

    Distance and mutual information concern positions of the grid alone: rows and columns of other
    tokens are left out, and the rest of each row is divided by its sum. A query without any weight
    on the grid is not counted. All values of a head are NaN if its rows do not sum to 1.

    Args:
        weights: (N, W, H, Q, K); each row sums to 1.
        queries: (Q,): which queries are positions of the grid. Default: all.
        keys: (K,): which keys are positions of the grid. Default: all, and no share of prefix
            tokens.
        distance: (Q, K): between queries and keys; that of other tokens is not read. Default: not
            measured.
        choices: Number of keys that each query may see, to be broadcast to (W, H, Q). Default: K.

    Example:
        >>> found = attention_statistics(torch.eye(4)[None, None, None])
        >>> [round(x.item(), 3) for x in (found.entropy, found.mutual_information, found.sink)]
        [0.0, 1.0, 1.0]
    """
    on, inside = (
        torch.ones(size, dtype=torch.bool) if chosen is None else chosen.cpu()
        for size, chosen in zip(weights.shape[-2:], (queries, keys), strict=True)
    )
    log = weights.clamp_min(_SMALLEST).log_()
    grid, beside = _run(inside), _run(~inside)
    share, within = weights[..., grid].sum(-1), -_dot(weights[..., grid], log[..., grid])
    entropy, prefix = within, torch.zeros((), device=weights.device)
    if not inside.all():
        prefix = weights[..., beside].sum(-1)
        entropy = within - (weights[..., beside] * log[..., beside]).sum(-1)
    # Rows are divided by their sum over the grid; others and rows without any weight there are not.
    scale = torch.where(share > _SMALLEST, share.reciprocal(), 0.0) * on.to(share)
    received = weights.sum(-2)
    plain = bool(on.all() & inside.all())
    looked = received if plain else (scale[..., None, :] @ weights)[..., 0, grid]
    unknown = torch.full_like(entropy[..., 0], torch.nan)
    choices = torch.tensor([weights.shape[-1]]) if choices is None else choices
    found = (
        entropy.mean(-1),
        _normalised(entropy, choices.to(weights.device)),
        unknown if distance is None else _distance(weights, distance, inside, scale, log),
        unknown if keys is None else prefix.expand_as(entropy).mean(-1),
        _mutual_information(looked, within, share, scale),
        _sink(received),
    )
    even = ((share + prefix - 1).abs() < _UNEVEN).all(-1)
    return AttentionStatistics(
        *(torch.where(even, one, torch.nan).double().mean(1) for one in found)
    )


def stable_rank(weights: Tensor) -> Tensor:
    """‖A‖²_F / ‖A‖²₂ of each head's matrix, averaged over windows: (N, H).

    Example:
        >>> stable_rank(torch.eye(3)[None, None, None]).item()
        3.0
    """
    if not len(weights):
        return weights.new_zeros(0, weights.shape[2])
    values = torch.linalg.svdvals(weights.double())
    return (values.square().sum(-1) / values[..., 0].square()).mean(1)


def attention_maps(
    weights: Tensor, cells: Tensor, grid: tuple[int, int], query: int | None
) -> Tensor:
    """The weights of one query, or their mean over all queries, on the grid of the keys.

    Args:
        weights: (N, W, H, Q, K).
        cells: (W, K): the index of each key in the grid, row by row; −1 if it is not on it.
        grid: Height and width.
        query: Its index. Default: the mean over queries.

    Returns:
        Maps (N, H, height, width).
    """
    rows = (weights.mean(-2) if query is None else weights[..., query, :]).transpose(1, 2)
    maps = rows.new_zeros(*rows.shape[:2], grid[0] * grid[1] + 1)
    maps[..., cells.flatten()] = rows.flatten(2)  # what is not on the grid goes to the last entry
    return maps[..., :-1].unflatten(-1, grid)


def value_norm_at_sinks(weights: Tensor, values: Tensor) -> Tensor:
    """The norm of the value at the key with the largest weight, over the mean norm: (N, H).

    Args:
        weights: (N, W, H, Q, K).
        values: (N, W, H, K, channels); fewer heads are repeated, as in grouped attention.
    """
    norms = torch.linalg.vector_norm(values, dim=-1)
    if norms.shape[2] != weights.shape[2]:
        norms = norms.repeat_interleave(weights.shape[2] // norms.shape[2], 2)
    sink = weights.sum(-2).argmax(-1, keepdim=True)
    return (norms.gather(-1, sink)[..., 0] / norms.mean(-1)).mean(1, dtype=torch.float64)


def _run(chosen: Tensor) -> slice | Tensor:
    """The chosen indices, as a slice if they are consecutive, which needs no copy."""
    indices = chosen.nonzero()[:, 0]
    first, last = (int(indices[0]), int(indices[-1])) if len(indices) else (0, -1)
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)


def _normalised(entropy: Tensor, choices: Tensor) -> Tensor:
    """The mean over queries that see more than one key: (N, W, H)."""
    share = (choices > 1) / choices.clamp_min(2).log()
    counted = (choices > 1).expand(entropy.shape[1:]).sum(-1)
    return (entropy * share).sum(-1) / counted


def _distance(
    weights: Tensor, distance: Tensor, inside: Tensor, scale: Tensor, spare: Tensor
) -> Tensor:
    """(N, W, H); ``spare`` is memory that may be overwritten."""
    known = torch.where(inside, distance.cpu(), 0.0).nan_to_num(0.0)
    rows = torch.mul(weights, known.to(weights), out=spare).sum(-1)
    return (rows * scale).sum(-1) / (scale > 0).sum(-1)


def _mutual_information(looked: Tensor, within: Tensor, share: Tensor, scale: Tensor) -> Tensor:
    """H(keys) − mean H(keys | query), over √(H(queries) H(keys)): (N, W, H).

    Args:
        looked: (N, W, H, K): sums of the rows that sum to 1, over queries.
        within: (N, W, H, Q): −Σ a log a over the keys of the grid.
        share: (N, W, H, Q): Σ a over the same keys.
        scale: (N, W, H, Q): 1 / share; 0 for queries that do not count.
    """
    counted = scale > 0
    queries = counted.sum(-1).double()
    inner = (within * scale + share.clamp_min(_SMALLEST).log() * counted).double().sum(-1)
    marginal = looked.double() / queries[..., None]
    keys = -_dot(marginal, marginal.clamp_min(1e-300).log())
    information = (keys - inner / queries).clamp_min(0)
    # If all queries look at the same key, its position tells nothing about theirs.
    found = torch.where(keys > 1e-9, information / (queries.log() * keys).sqrt(), 0.0)
    several = (queries > 1) if looked.shape[-1] > 1 else torch.zeros_like(queries, dtype=torch.bool)
    return torch.where(several, found, torch.nan)


def _sink(received: Tensor) -> Tensor:
    ordered = received.sort(-1).values
    count = received.shape[-1]
    median = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return ordered[..., -1] / torch.maximum(median, _FLOOR * received.mean(-1))
