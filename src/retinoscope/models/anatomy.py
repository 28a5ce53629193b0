"""The anatomy of a model, given its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from retinoscope.anatomy.dissect import dissect
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.preprocessing import Size, image_size
from retinoscope.core.specification import short_name
from retinoscope.core.wording import assumed_words
from retinoscope.models.load import load_model
from retinoscope.models.redraw import WeightsFixed


def anatomy_of(
    name: str,
    size: Size | None = None,
    *,
    output: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
    say: Callable[[str], None] | None = None,
) -> Anatomy:
    """Build the model ``name`` and dissect it; it is untrained unless ``weights`` are given.

    ``size`` is the image size, 224 or (height, width). Default: the model's own.
    ``say`` is called with a message if the size had to be assumed.
    """
    sides = None if size is None else image_size(size)
    load = partial(
        load_model, name, weights=weights, seed=seed, allow_pickle=allow_pickle, size=sides
    )
    try:
        loaded = load(pretrained=False)
    except WeightsFixed:  # the anatomy does not depend on the weights
        loaded = load()
    # The anatomy does not depend on the normalisation, so only the size is mentioned.
    if say is not None and (assumed := [one for one in loaded.assumed if one.startswith("size")]):
        say(assumed_words(short_name(name), assumed))
    found = dissect(loaded.model, loaded.image[1:], output=output, name=name)
    return replace(found, weights=loaded.weights)
