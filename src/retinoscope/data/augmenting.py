"""Building blocks of augmentation: random generators, shifts of pixels, and timm's transforms.

Pixels are uint8 (H, W, C). The random transforms draw from the global generators, as timm does:
call them inside a :func:`reseeded` block.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from retinoscope.core.preprocessing import Preprocessing
from retinoscope.data.prepare import prepare

_within = threading.local()


def generator(seed: int, index: int, stream: int = 0, epoch: int = 0) -> np.random.Generator:
    """A random generator that depends only on these four numbers."""
    key = [(seed << 8) + stream, (epoch << 32) + index]
    return np.random.Generator(np.random.Philox(key=key))


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the global generators of random, numpy and torch after the block.

    Saving numpy's state takes longer than augmenting a small image. A nested block does not save
    it again, so one block around many views makes each of them faster. Keep other code that draws
    from the global generators, such as reading a Dataset, outside the block.
    """
    if getattr(_within, "preserved", False):
        yield
        return
    # timm draws from numpy's old global generator, so that one is saved.
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    _within.preserved = True
    try:
        yield
    finally:
        _within.preserved = False
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


@contextmanager
def reseeded(number: int) -> Iterator[None]:
    """Seed the global generators by a number below 2⁶³ and restore them after the block."""
    with preserved():
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        # torch.manual_seed would also seed the accelerators, which are not restored.
        torch.default_generator.manual_seed(number)
        yield


def prepared(image: np.ndarray, preprocessing: Preprocessing, channels: int = 3) -> np.ndarray:
    """The pixels of :func:`prepare`; the image itself, not a copy, if there is nothing to do."""
    if channels == 3 and image.shape[:2] == preprocessing.size and preprocessing.crop_pct == 1.0:
        return image
    return prepare(image, preprocessing, channels).permute(1, 2, 0).numpy()


def moved(pixels: np.ndarray, down: int, right: int, mirrored: bool) -> np.ndarray:
    """A crop of the same size, offset by ``down`` and ``right`` and padded with black."""
    if down or right:
        height, width = pixels.shape[:2]
        canvas = np.zeros(pixels.shape, np.uint8)
        canvas[max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)] = (
            pixels[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)]
        )
        pixels = canvas
    return pixels[:, ::-1] if mirrored else pixels


def floats(pixels: np.ndarray) -> Tensor:
    """The pixels as a new float32 tensor (C, H, W) in [0, 1]."""
    planes = pixels.transpose(2, 0, 1)
    values = np.empty(planes.shape, np.float32)
    np.divide(planes, np.float32(255), out=values, dtype=np.float32)
    return torch.from_numpy(values)


def randomly_resized(
    image: np.ndarray, preprocessing: Preprocessing, scale: tuple[float, ...], channels: int = 3
) -> np.ndarray:
    """A part of the image with random area and aspect ratio, resized to the model's size."""
    size = (image.shape[0], image.shape[1])
    whole = prepared(image, replace(preprocessing, size=size, crop_pct=1.0), channels)
    crop = _resized_crop(preprocessing.size, scale, preprocessing.interpolation)
    return _pixels(crop(_picture(whole)))


def randomly_augmented(pixels: np.ndarray, preprocessing: Preprocessing, policy: str) -> np.ndarray:
    """The pixels after RandAugment; uncovered areas get the model's mean colour."""
    fill = tuple(min(255, round(255 * v)) for v in _colour(preprocessing, pixels.shape[2]))
    augment = _randaugment(policy, preprocessing.size, fill, preprocessing.interpolation)
    return _pixels(augment(_picture(pixels)))


def randomly_erased(image: Tensor, preprocessing: Preprocessing, probability: float) -> Tensor:
    """An image (C, H, W) in [0, 1] in which a box may be filled with the model's mean colour.

    The mean colour is 0 after normalisation, which is what timm writes into a normalised image.
    """
    # timm erases with zeros; a mask lets us choose the colour and keeps the other pixels exact.
    kept = _eraser(probability)(torch.ones(1, *image.shape[-2:], dtype=torch.bool))
    if kept.all():
        return image
    colour = torch.tensor(_colour(preprocessing, len(image)), dtype=image.dtype)
    return torch.where(kept, image, colour[:, None, None])


def mixed_with_itself(images: Tensor, labels: Tensor, mixer: Any) -> tuple[Tensor, Tensor]:
    """A batch after timm's ``Mixup``, and its targets; the input is not modified.

    timm only takes an even number of images. An odd batch is extended by a copy of its second
    image, which becomes the partner of the first and is removed afterwards.
    """
    total = len(images)
    if total % 2 == 0:
        return mixer(images.clone(), labels)  # timm mixes in place
    lent = slice(1, 2) if total > 1 else slice(0, 1)
    images, targets = mixer(torch.cat([images, images[lent]]), torch.cat([labels, labels[lent]]))
    return images[:total], targets[:total]


def _colour(preprocessing: Preprocessing, channels: int) -> tuple[float, ...]:
    mean = preprocessing.mean
    return mean if len(mean) == channels else (sum(mean) / len(mean),) * channels


def _picture(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def _pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).reshape(picture.height, picture.width, -1)


@lru_cache(maxsize=16)
def _resized_crop(size: tuple[int, int], scale: tuple[float, ...], interpolation: str) -> Any:
    from timm.data.transforms import RandomResizedCropAndInterpolation

    return RandomResizedCropAndInterpolation(size, scale=scale, interpolation=interpolation)


@lru_cache(maxsize=16)
def _randaugment(
    policy: str, size: tuple[int, int], fill: tuple[int, ...], interpolation: str
) -> Any:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.transforms import str_to_pil_interp

    settings = {
        "translate_const": int(min(size) * 0.45),
        "img_mean": fill,
        "interpolation": str_to_pil_interp(interpolation),
    }
    return rand_augment_transform(policy, settings)


@lru_cache(maxsize=16)
def _eraser(probability: float) -> Any:
    from timm.data.random_erasing import RandomErasing

    return RandomErasing(probability, mode="const", device="cpu")
