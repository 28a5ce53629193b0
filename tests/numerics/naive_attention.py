"""Statistics of attention the slow way: one row at a time, in double precision, by their names."""

from __future__ import annotations

import math

import numpy as np


def statistics(weights, queries=None, keys=None, distance=None, seen=None):
    """Each (N, heads), by name, of weights (N, windows, heads, queries, keys).

    ``queries`` and ``keys`` say which entries are positions; ``seen`` (windows, heads, queries,
    keys) which keys a query may see.
    """
    weights = np.asarray(weights, dtype=np.float64)
    images, windows, heads, rows, columns = weights.shape
    on = np.ones(rows, bool) if queries is None else np.asarray(queries)
    inside = np.ones(columns, bool) if keys is None else np.asarray(keys)
    found = {name: np.zeros((images, heads)) for name in (
        "entropy", "normalised_entropy", "distance", "prefix_share", "mutual_information", "sink",
    )}  # fmt: skip
    for n in range(images):
        for h in range(heads):
            each = {name: [] for name in found}
            for w in range(windows):
                one = weights[n, w, h]
                allowed = np.full(rows, columns) if seen is None else seen[w, h].sum(-1)
                entropy = [_entropy(row) for row in one]
                each["entropy"].append(np.mean(entropy))
                each["normalised_entropy"].append(np.mean(
                    [e / math.log(k) for e, k in zip(entropy, allowed, strict=True) if k > 1]
                ))  # fmt: skip
                each["prefix_share"].append(one[:, ~inside].sum(-1).mean())
                grid = one[on][:, inside]
                grid = grid / grid.sum(-1, keepdims=True)
                each["mutual_information"].append(_mutual_information(grid))
                apart = math.nan if distance is None else np.asarray(distance)[on][:, inside]
                each["distance"].append((grid * apart).sum(-1).mean())
                received = one.sum(0)
                each["sink"].append(received.max() / np.median(received))
            for name, values in each.items():
                found[name][n, h] = np.mean(values)
    return found


def _entropy(row):
    return -sum(p * math.log(p) for p in row if p > 0)


def _mutual_information(rows):
    """Σ p(q, k) log(p(q, k) / p(q) p(k)), over √(H_q H_k)."""
    joint = rows / len(rows)
    q, k = joint.sum(1), joint.sum(0)
    information = sum(
        joint[i, j] * math.log(joint[i, j] / (q[i] * k[j]))
        for i in range(len(q))
        for j in range(len(k))
        if joint[i, j] > 0
    )
    return information / math.sqrt(_entropy(q) * _entropy(k))
