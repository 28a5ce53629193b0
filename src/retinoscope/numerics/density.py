"""Densities of eigenvalues: of a sample, and of a whole spectrum from a quadrature of it."""

from __future__ import annotations

import math

import numpy as np
import torch

POINTS = 200
_SPREAD = 0.01
"""Width of the bell around each node, as a share of the range of the nodes."""
_ALIKE = 1e-9
"""Nodes that differ by less, as a share of the largest, differ by rounding."""
_REACH = 5.0
"""How many widths the axis goes on after the last node."""


def one_sided_density(values: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Places from 0 on and the density of values of one sign there; empty where there are none.

    A Gaussian kernel by Silverman's rule, mirrored at 0 so that nothing leaks to the other side:
    the density integrates to the share of the values among all.

    Args:
        values: All of one sign.
        total: How many values of both signs there are.

    Example:
        >>> at, density = one_sided_density(np.array([-3.0, -2.0, -2.5]), 6)
        >>> round(float(np.trapezoid(density, at)), 3), bool(at[-1] == 0)
        (0.5, True)
    """
    if not len(values):
        return np.empty(0), np.empty(0)
    sizes = np.abs(values)
    # A bell narrower than the way from one point to the next would fall between them.
    width = max(_bandwidth(sizes), sizes.max() / (POINTS - 5))
    at = np.linspace(0.0, sizes.max() + 4 * width, POINTS)
    bells = [np.exp(-0.5 * ((at[:, None] + s * sizes) / width) ** 2) for s in (-1, 1)]
    density = (bells[0] + bells[1]).sum(1) / (total * width * math.sqrt(2 * math.pi))
    return (at, density) if values[0] > 0 else (-at[::-1], density[::-1])


def _bandwidth(sizes: np.ndarray) -> float:
    """Silverman's; a tenth of the mean where the values are all the same."""
    low, high = np.quantile(sizes, [0.25, 0.75])
    spreads = [s for s in (sizes.std(ddof=1) if len(sizes) > 1 else 0.0, (high - low) / 1.34) if s]
    if not spreads:
        return float(0.1 * sizes.mean()) or 1.0
    return float(0.9 * min(spreads) * len(sizes) ** -0.2)


def spectral_density(nodes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places and the density of a spectrum there, from nodes and weights that sum to 1.

    Each node becomes a bell of a hundredth of the range; a place has the mean density of its
    stretch of the axis, so that all of them together hold the whole mass.

    Example:
        >>> at, density = spectral_density(np.array([0.0, 10.0]), np.array([0.75, 0.25]))
        >>> round(float(density.sum() * (at[1] - at[0])), 6)
        1.0
    """
    low, high = float(nodes.min()), float(nodes.max())
    size = max(abs(low), abs(high)) or 1.0
    width = _SPREAD * (high - low if high - low > _ALIKE * size else size)
    edges = np.linspace(low - _REACH * width, high + _REACH * width, POINTS + 1)
    scaled = (edges[:, None] - nodes) / (width * math.sqrt(2))
    below = (0.5 * (1 + torch.special.erf(torch.from_numpy(scaled)).numpy())) @ weights
    return (edges[:-1] + edges[1:]) / 2, np.diff(below) / np.diff(edges)
