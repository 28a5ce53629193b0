"""The anatomy of a model by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retinoscope.anatomy.dissect import dissect
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.preprocessing import Size, image_size
from retinoscope.models.load import load_model


def anatomy_of(
    name: str,
    size: Size | None = None,
    *,
    output: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
) -> Anatomy:
    """Build the model called ``name``, untrained unless ``weights`` are given, and take it apart.

    ``size`` is the image size, 224 or (height, width); without it, the model's own.
    """
    sides = None if size is None else image_size(size)
    loaded = load_model(
        name, pretrained=False, weights=weights, seed=seed, allow_pickle=allow_pickle
    )
    found = dissect(loaded.model, sides or loaded.image[1:], output=output, name=name)
    return replace(found, weights=loaded.weights)
