"""Pictures of feature maps: two-dimensional spectra and single maps, at a common size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_FLOOR = 1e-6
"""Added to amplitudes before the logarithm, as in the paper's code."""


def spectra(maps: Tensor) -> Tensor:
    """The log amplitude of each image's maps (N, H, W), averaged over channels.

    Frequency 0 is at (H // 2, W // 2), and its value is subtracted.

    Args:
        maps: (N, C, H, W).
    """
    log = (torch.fft.fft2(maps.float()).abs() + _FLOOR).log().mean(1)
    centred = torch.fft.fftshift(log, (1, 2))
    height, width = centred.shape[1:]
    return centred - centred[:, height // 2, width // 2].view(-1, 1, 1)


def liveliest(maps: Tensor) -> Tensor:
    """Of each image the map (N, H, W) that varies most over positions, from 0 to 1."""
    if not len(maps):
        return maps[:, 0].float()
    chosen = maps.flatten(2).var(2, correction=0).argmax(1)
    found = maps[torch.arange(len(maps)), chosen].float()
    low, high = found.amin((1, 2), keepdim=True), found.amax((1, 2), keepdim=True)
    return (found - low) / (high - low).clamp_min(torch.finfo(found.dtype).tiny)


def thumbnails(images: Tensor, side: int = 128) -> Tensor:
    """Images (N, C, H, W) as RGB (N, h, w, 3) from 0 to 1, each stretched to that range.

    Args:
        images: Preprocessed images; of one or more than three channels, their mean is shown.
        side: The longest side of the result; larger images are reduced.
    """
    shown = images.float() if images.shape[1] == 3 else images.float().mean(1, keepdim=True)
    shrink = min(1.0, side / max(images.shape[2:]))
    size = [max(1, round(length * shrink)) for length in images.shape[2:]]
    shown = torch.nn.functional.interpolate(shown, size=size, mode="area")
    low, high = shown.amin((1, 2, 3), keepdim=True), shown.amax((1, 2, 3), keepdim=True)
    stretched = (shown - low) / (high - low).clamp_min(torch.finfo(shown.dtype).tiny)
    return stretched.expand(-1, 3, -1, -1).movedim(1, -1)


def at_one_size(pictures: Sequence[np.ndarray], side: int = 64) -> np.ndarray:
    """Pictures (H, W) of several sizes as one array (N, h, w), by repeating pixels.

    Args:
        pictures: At least one.
        side: The longest side of the result, unless all pictures are smaller.

    Example:
        >>> at_one_size([np.array([[1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])])[0]
        array([[1., 1.],
               [1., 1.]])
    """
    largest = max((picture.shape for picture in pictures), key=max)
    shrink = min(1.0, side / max(largest))
    height, width = (max(1, round(length * shrink)) for length in largest)
    return np.stack([
        picture[np.arange(height) * picture.shape[0] // height][
            :, np.arange(width) * picture.shape[1] // width
        ]
        for picture in pictures
    ])  # fmt: skip
