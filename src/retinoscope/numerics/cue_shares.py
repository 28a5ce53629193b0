"""Shape bias: whether shape or texture determines the prediction on cue-conflict images.

See Geirhos et al. (2019, arXiv:1811.12231).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CueShares:
    """The fractions of predictions that follow each cue; the three add up to 1."""

    shape: float
    """Fraction of all images whose prediction is the class of the shape."""
    texture: float
    neither: float
    bias: float | None
    """``shape / (shape + texture)``: 1 if only shape counts; None if neither was predicted."""
    images: int


def cue_shares(predicted: np.ndarray, shape: np.ndarray, texture: np.ndarray) -> CueShares:
    """The fractions of predictions that follow shape, texture or neither, on conflicting cues.

    Args:
        predicted: The predicted class, shape (N,).
        shape: The class of each image's shape, shape (N,).
        texture: The class of each image's texture, shape (N,); different from that of its shape.

    Example:
        >>> shape, texture = np.array([0, 0, 0, 0]), np.array([1, 1, 2, 2])
        >>> found = cue_shares(np.array([0, 1, 0, 5]), shape, texture)
        >>> found.shape, found.texture, found.neither, round(found.bias, 3)
        (0.5, 0.25, 0.25, 0.667)
    """
    predicted, shape, texture = (np.asarray(each) for each in (predicted, shape, texture))
    if predicted.ndim != 1 or not predicted.shape == shape.shape == texture.shape:
        raise ValueError(
            "Predictions, shapes and textures must have the same shape (N,); got "
            f"{predicted.shape}, {shape.shape} and {texture.shape}."
        )
    images = len(predicted)
    if not images:
        raise ValueError("The shares of zero images are not defined.")
    agreeing = int(np.count_nonzero(shape == texture))
    if agreeing:
        first = int(np.flatnonzero(shape == texture)[0])
        raise ValueError(
            f"{agreeing} of {images} images have a shape and a texture of the same class (the "
            f"first is image {first}, of class {shape[first]}). Remove them: without a conflict "
            "they do not show which cue decides."
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
