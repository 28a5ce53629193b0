"""Densities of eigenvalues: of a sample, and of a whole spectrum from its quadrature."""

from __future__ import annotations

import math

import numpy as np
import torch

POINTS = 200
_SPREAD = 0.01
"""Width of the Gaussian around each node, as a fraction of the range of the nodes."""
_ALIKE = 1e-9
"""Nodes that differ by less than this fraction of the largest differ only by rounding."""
_REACH = 5.0
"""Number of widths by which the axis extends beyond the last node."""


def one_sided_density(values: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The density of values of one sign, and its coordinates from 0 on; empty without values.

    A Gaussian kernel with Silverman's bandwidth, reflected at 0 so that no mass crosses to the
    other side: the density integrates to the fraction of these values among all.

    Args:
        values: All of one sign.
        total: The number of values of both signs.

    Example:
        >>> at, density = one_sided_density(np.array([-3.0, -2.0, -2.5]), 6)
        >>> round(float(np.trapezoid(density, at)), 3), bool(at[-1] == 0)
        (0.5, True)
    """
    if not len(values):
        return np.empty(0), np.empty(0)
    sizes = np.abs(values)
    # A kernel narrower than the distance between points would fall between them.
    width = max(_bandwidth(sizes), sizes.max() / (POINTS - 5))
    at = np.linspace(0.0, sizes.max() + 4 * width, POINTS)
    bells = [np.exp(-0.5 * ((at[:, None] + s * sizes) / width) ** 2) for s in (-1, 1)]
    density = (bells[0] + bells[1]).sum(1) / (total * width * math.sqrt(2 * math.pi))
    return (at, density) if values[0] > 0 else (-at[::-1], density[::-1])


def _bandwidth(sizes: np.ndarray) -> float:
    """Silverman's bandwidth; a tenth of the mean if all values are equal."""
    low, high = np.quantile(sizes, [0.25, 0.75])
    spreads = [s for s in (sizes.std(ddof=1) if len(sizes) > 1 else 0.0, (high - low) / 1.34) if s]
    if not spreads:
        return float(0.1 * sizes.mean()) or 1.0
    return float(0.9 * min(spreads) * len(sizes) ** -0.2)


def spectral_density(nodes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and the density of a spectrum, from nodes and weights that sum to 1.

    Each node becomes a Gaussian whose width is a hundredth of the range. The density at a
    coordinate is the mean over its interval of the axis, so that the total mass is preserved.

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
