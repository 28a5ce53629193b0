"""Prepare images of any size as input of a model, in pixel space."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing


def prepare(image: np.ndarray, preprocessing: Preprocessing, channels: int = 3) -> Tensor:
    """Resize and crop RGB uint8 (H, W, 3) as timm does in evaluation, to uint8 (C, H, W)."""
    if channels not in (1, 3):
        raise WrongInput(
            f"The model takes images of {channels} channels, but photos have 3 (or 1, as grey)."
        )
    picture = Image.fromarray(image)
    if channels == 1:
        picture = picture.convert("L")
    if (picture.height, picture.width) == preprocessing.size and preprocessing.crop_pct == 1.0:
        return torch.from_numpy(np.array(picture)).reshape(*picture.size[::-1], -1).permute(2, 0, 1)
    return _transform(preprocessing)(picture)


def as_floats(images: Tensor) -> Tensor:
    """The uint8 images as float32 in [0, 1]."""
    return images.float().div_(255)


@lru_cache(maxsize=16)
def _transform(preprocessing: Preprocessing) -> Any:
    from timm.data.transforms_factory import transforms_imagenet_eval

    return transforms_imagenet_eval(
        preprocessing.size,
        crop_pct=preprocessing.crop_pct,
        crop_mode=preprocessing.crop_mode,
        interpolation=preprocessing.interpolation,
        mean=preprocessing.mean,
        normalize=False,
    )
