"""The anatomy of a model by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retinoscope.anatomy.dissect import dissect
from retinoscope.core.anatomy import Anatomy
from retinoscope.models.load import load_model


def anatomy_of(
    name: str,
    size: tuple[int, int] | None = None,
    *,
    output: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
) -> Anatomy:
    """Build the model called ``name``, untrained unless ``weights`` are given, and take it apart.

    ``size`` is (height, width) of the images; without it, the model's own.
    """
    loaded = load_model(
        name, pretrained=False, weights=weights, seed=seed, allow_pickle=allow_pickle
    )
    found = dissect(loaded.model, size or loaded.image[1:], output=output, name=name)
    return replace(found, weights=loaded.weights)
