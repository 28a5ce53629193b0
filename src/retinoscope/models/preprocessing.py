"""The preprocessing of a model, read from its published configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import nn

from retinoscope.core.preprocessing import CropMode, Interpolation, Preprocessing

_IMAGENET = Preprocessing()
_KNOWN = ("nearest", "bilinear", "bicubic")


def from_timm(model: nn.Module, image: tuple[int, int, int]) -> Preprocessing:
    """Preprocessing from a model's timm configuration; ImageNet's values if it has none."""
    configuration = getattr(model, "pretrained_cfg", None)
    given: Mapping[str, Any] = configuration if isinstance(configuration, Mapping) else {}
    own = given.get("input_size")
    # The published crop is for the published size; a model built for another size has none.
    cut = float(given.get("crop_pct") or 1.0) if own and tuple(own[1:]) == image[1:] else 1.0
    return Preprocessing(
        size=image[1:],
        crop_pct=cut,
        crop_mode=cast(CropMode, given.get("crop_mode") or "center"),
        interpolation=_interpolation(given.get("interpolation")),
        mean=_channels(given.get("mean"), image[0], _IMAGENET.mean),
        std=_channels(given.get("std"), image[0], _IMAGENET.std),
    )


def from_torchvision(weights: Any, image: tuple[int, int, int]) -> Preprocessing:
    """Preprocessing from the transforms that torchvision publishes with a model's weights."""
    if weights is None:
        return Preprocessing(size=image[1:])
    transforms = weights.transforms()
    if not hasattr(transforms, "crop_size"):  # not for classification
        return Preprocessing(size=image[1:])
    crop, resize = transforms.crop_size[0], transforms.resize_size[0]
    return Preprocessing(
        size=image[1:],
        crop_pct=crop / resize if crop == image[1] else 1.0,
        interpolation=_interpolation(getattr(transforms.interpolation, "value", None)),
        mean=_channels(transforms.mean, image[0], _IMAGENET.mean),
        std=_channels(transforms.std, image[0], _IMAGENET.std),
    )


def from_transformers(path: str, image: tuple[int, int, int]) -> Preprocessing:
    """Preprocessing of a transformers model; ImageNet's values if it has no configuration."""
    given = processor(path)
    cut = given.get("crop_pct") or 1.0
    size, crop = given.get("size"), given.get("crop_size")
    if given.get("do_center_crop") and isinstance(size, Mapping) and isinstance(crop, Mapping):
        cut = crop.get("height", image[1]) / size.get("shortest_edge", image[1])
    normalised = given.get("do_normalize", True)
    return Preprocessing(
        size=image[1:],
        crop_pct=float(cut),
        crop_mode="center" if cut != 1.0 or not given else "squash",
        interpolation={0: "nearest", 2: "bilinear", 3: "bicubic"}.get(
            given.get("resample", 3), "bicubic"
        ),  # type: ignore[arg-type]
        mean=_channels(given.get("image_mean") if normalised else (0.0,), image[0], _IMAGENET.mean),
        std=_channels(given.get("image_std") if normalised else (1.0,), image[0], _IMAGENET.std),
    )


def processed_size(path: str) -> tuple[int, int] | None:
    """Image size after the preprocessing of a transformers model; None if not specified."""
    given = processor(path)
    for key in ("crop_size", "size"):
        found = given.get(key)
        if isinstance(found, Mapping) and "height" in found and "width" in found:
            return int(found["height"]), int(found["width"])
        side = found.get("shortest_edge") if isinstance(found, Mapping) else found
        if isinstance(side, int):
            return side, side
    return None


def processor(path: str) -> Mapping[str, Any]:
    """Content of a transformers model's ``preprocessor_config.json``; empty if it has none."""
    folder = Path(path)
    file = (folder.parent if folder.suffix == ".json" else folder) / "preprocessor_config.json"
    if file.is_file():
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    if folder.exists():
        return {}
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(path, trust_remote_code=False).to_dict()
    except (OSError, ValueError):  # a model without one, or no network
        return {}


def _interpolation(name: Any) -> Interpolation:
    return cast(Interpolation, name) if name in _KNOWN else "bicubic"


def _channels(values: Any, channels: int, default: tuple[float, ...]) -> tuple[float, ...]:
    """One value per channel; if their number differs, the mean of the values for all channels."""
    found = tuple(float(value) for value in (default if values is None else values))
    if len(found) == channels:
        return found
    return (sum(found) / len(found),) * channels
