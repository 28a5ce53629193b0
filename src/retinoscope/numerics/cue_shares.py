"""Whether shape or texture decides, on images whose two cues are of different classes.

Shape bias after Geirhos et al. (2019, arXiv:1811.12231).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CueShares:
    """Which cue the answers name; the three shares add up to 1."""

    shape: float
    """Share of all images whose answer is the class of the shape."""
    texture: float
    neither: float
    bias: float | None
    """``shape / (shape + texture)``: 1 where only shape counts; None where neither was named."""
    images: int


def cue_shares(predicted: np.ndarray, shape: np.ndarray, texture: np.ndarray) -> CueShares:
    """The shares of answers that follow shape, texture or neither, over images of conflicting cues.

    Args:
        predicted: The class that was answered, shape (N,).
        shape: The class of each image's shape, shape (N,).
        texture: The class of each image's texture, shape (N,); never that of its shape.

    Example:
        >>> shape, texture = np.array([0, 0, 0, 0]), np.array([1, 1, 2, 2])
        >>> found = cue_shares(np.array([0, 1, 0, 5]), shape, texture)
        >>> found.shape, found.texture, found.neither, round(found.bias, 3)
        (0.5, 0.25, 0.25, 0.667)
    """
    predicted, shape, texture = (np.asarray(each) for each in (predicted, shape, texture))
    if predicted.ndim != 1 or not predicted.shape == shape.shape == texture.shape:
        raise ValueError(
            "Answers, shapes and textures are of one length, shape (N,); "
            f"got {predicted.shape}, {shape.shape} and {texture.shape}."
        )
    images = len(predicted)
    if not images:
        raise ValueError("The shares of no images are not defined.")
    agreeing = int(np.count_nonzero(shape == texture))
    if agreeing:
        first = int(np.flatnonzero(shape == texture)[0])
        raise ValueError(
            f"{agreeing} of {images} images have a shape and a texture of the same class "
            f"(the first is image {first}, of class {shape[first]}). Leave them out: without a "
            "conflict they do not say which cue decides."
        )
    by_shape = int(np.count_nonzero(predicted == shape))
    by_texture = int(np.count_nonzero(predicted == texture))
    named = by_shape + by_texture
    return CueShares(
        shape=by_shape / images,
        texture=by_texture / images,
        neither=(images - named) / images,
        bias=by_shape / named if named else None,
        images=images,
    )
