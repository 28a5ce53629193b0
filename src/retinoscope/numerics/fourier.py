"""Log amplitudes of maps at true frequencies, along the diagonal of the spectrum or over rings.

A map of H × W positions has amplitudes at the frequencies 2πk/H rad/px; on a square map, the
diagonal contains those with the same frequency along rows and columns.

**Bins that are their own mirror image.** A real map x has a spectrum with F(−ω) = conj F(ω), where
frequencies count modulo 2π. A bin with ω = −ω, both of whose frequencies are 0 or π, is therefore
real; all others are complex. Let F be a bin of Gaussian noise with power E|F|² = σ². Where it is
complex, |F|² = σ²·t with t exponential of mean 1, and E ln t = −γ (Euler's constant). Where it is
real, |F|² = σ²·u with u chi-squared of one degree of freedom, and E ln u = −γ − ln 2. So

    E ln|F| = (ln σ² − γ) / 2          of a complex bin,
    E ln|F| = (ln σ² − γ − ln 2) / 2   of a real one:

at equal power, the mean log amplitude of a real bin is ½ ln 2 ≈ 0.35 lower. The diagonal of a
square map has one real bin above 0, at π, if its side is even, and none if it is odd: without
:func:`mirror_correction` the curve of an even map kinks at π, and part of the step to an odd map is
parity. The correction is a constant per frequency and size, so it does not change differences
between maps of equal size.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Direction = Literal["diagonal", "radial"]

_FLOOR = 1e-6
"""Added to amplitudes before the logarithm (Park & Kim, 2022): log 0 is not defined."""


def frequencies(height: int, width: int) -> np.ndarray:
    """The frequencies of a map's curve, from 0 to at most π rad/px.

    They are the frequencies of the shorter side. An odd side does not reach π.

    Example:
        >>> (frequencies(4, 4) / math.pi).tolist()
        [0.0, 0.5, 1.0]
        >>> len(frequencies(7, 9))
        4
    """
    side = min(height, width)
    return 2 * math.pi * np.arange(side // 2 + 1) / side


def log_amplitudes(maps: Tensor, direction: Direction = "diagonal") -> Tensor:
    """Log amplitude of maps (N, C, H, W) at :func:`frequencies`, averaged over channels: (N, K)."""
    height, width = maps.shape[-2:]
    if direction == "radial":
        return _radial(maps)
    return _square_diagonal(maps) if height == width else _diagonal(maps)


def mirror_correction(height: int, width: int, direction: Direction = "diagonal") -> np.ndarray:
    """The correction to :func:`log_amplitudes` that makes white noise flat above frequency 0: (K,).

    ½ ln 2 times the fraction of real bins among those that each frequency is averaged or
    interpolated from. Frequency 0 is not corrected: its bin is the map's mean, which for a real
    feature map is not noise around 0, so that no constant would be correct; and since every size
    has it, it cancels between sizes anyway.

    Example:
        >>> mirror_correction(4, 4).round(3).tolist(), mirror_correction(5, 5).tolist()
        ([0.0, 0.0, 0.347], [0.0, 0.0, 0.0])
    """
    if direction == "radial":
        ring, count = (tensor.numpy() for tensor in _rings(height, width, torch.device("cpu")))
        real = np.outer(_own_mirror(height), _own_mirror(width)).ravel()
        share = np.bincount(ring[real], minlength=len(count) + 1)[: len(count)] / count
    else:
        # Of the diagonal's bins above 0, only (π, π) is real: the others have an intermediate
        # frequency.
        share = np.zeros(min(height, width) // 2 + 1)
        share[-1] = height % 2 == width % 2 == 0
    share[0] = 0
    return share * math.log(2) / 2


def _own_mirror(side: int) -> np.ndarray:
    """Which frequencies of a side are 0 or π."""
    return 2 * np.arange(side) % side == 0


def _square_diagonal(maps: Tensor) -> Tensor:
    """The diagonal of the spectrum as one product with a small basis, without a full transform.

    The mean is subtracted first: otherwise rounding would dominate small amplitudes.
    """
    side = maps.shape[-1]
    basis = _basis(side, maps.dtype, maps.device)
    flat = maps.flatten(2)
    mean = flat.mean(-1, keepdim=True)
    centred = flat - mean
    if flat.is_contiguous():
        waves = centred @ basis
        channels, parts = 1, waves.chunk(2, -1)
    else:  # channels last, like tokens: this order needs no copy
        waves = basis.T @ centred.transpose(1, 2)
        channels, parts = 2, waves.chunk(2, 1)
    amplitude = torch.hypot(*parts) if maps.dtype == torch.float64 else _modulus(*parts)
    log = amplitude.add_(_FLOOR).log_().mean(channels)
    constant = (mean[..., 0].abs() * side**2).add_(_FLOOR).log_().mean(1, keepdim=True)
    return torch.cat([constant, log], 1)


def _modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    return real.square().addcmul_(imaginary, imaginary).sqrt_()


@lru_cache(maxsize=64)
def _basis(side: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines (side², 2K) of the diagonal's frequencies except 0, in that order."""
    order = torch.arange(1, side // 2 + 1)
    place = torch.arange(side)
    # Reduced modulo the side first, so that large multiples lose no digits.
    phase = (order[:, None, None] * (place[:, None] + place)) % side
    angle = 2 * math.pi * phase.double() / side
    return torch.cat([angle.cos(), -angle.sin()]).flatten(1).T.to(device, dtype).contiguous()


def _diagonal(maps: Tensor) -> Tensor:
    """The diagonal of a rectangular spectrum, interpolated between two bins of the longer side."""
    height, width = maps.shape[-2:]
    log = _spectrum(maps).mean(1)
    if height > width:
        log = log.transpose(1, 2)
    short, long = sorted((height, width))
    order = torch.arange(short // 2 + 1)
    place = order.double() * long / short  # on the CPU: some devices lack double precision
    low = place.floor().long()
    share = (place - low).to(maps.device, maps.dtype)
    high = (low + 1).clamp_max(long - 1)
    return log[:, order, low] * (1 - share) + log[:, order, high] * share


def _radial(maps: Tensor) -> Tensor:
    """Means over rings of equal width around frequency 0, up to π; the corners are omitted."""
    height, width = maps.shape[-2:]
    ring, count = _rings(height, width, maps.device)
    log = _spectrum(maps).mean(1).flatten(1)
    sums = torch.zeros(len(maps), len(count) + 1, dtype=log.dtype, device=log.device)
    sums.index_add_(1, ring, log)
    return sums[:, :-1] / count


@lru_cache(maxsize=64)
def _rings(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The ring of each bin of the spectrum (an extra one for corners), and the bins per ring.

    Rings are centred at the frequencies of the shorter side, and their width is the distance
    between these.
    """
    side = min(height, width)
    rows, columns = (torch.fft.fftfreq(n, dtype=torch.float64) * side for n in (height, width))
    radius = torch.hypot(rows[:, None], columns[None]).add(1e-9).round().long()
    last = side // 2 + 1
    ring = radius.clamp_max(last).flatten()
    return ring.to(device), torch.bincount(ring, minlength=last + 1)[:-1].to(device)


def _spectrum(maps: Tensor) -> Tensor:
    return torch.fft.fft2(maps).abs().add_(_FLOOR).log_()
