"""Assumptions about a model's images, if neither its source nor the user specifies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retinoscope.core.preprocessing import Size, image_size
from retinoscope.models.sizing import find_size
from retinoscope.models.sources import NORMALISATION, SIZE, Built

Channels = float | Sequence[float]


def settled(
    built: Built, size: Size | None, mean: Channels | None, std: Channels | None
) -> tuple[Built, tuple[str, ...]]:
    """Return the model with its final image settings, and what had to be assumed, in words.

    The user's values take precedence over those of the source; otherwise values are assumed.
    """
    own, said = built.preprocessing, []
    if size is not None:
        own = replace(own, size=image_size(size))
    elif SIZE in built.unknown:
        found = find_size(built.model, built.image[0])
        own = replace(own, size=found.size, crop_pct=1.0)
        said.append(f"size {found.size[0]}×{found.size[1]} ({found.how})")
    if NORMALISATION in built.unknown and (mean is None or std is None):
        open_ = [name for name, value in (("mean", mean), ("std", std)) if value is None]
        said.append(f"{' and '.join(open_)} of ImageNet")
    own = replace(
        own,
        mean=own.mean if mean is None else _row(mean),
        std=own.std if std is None else _row(std),
    )
    return replace(built, image=(built.image[0], *own.size), preprocessing=own), tuple(said)


def _row(values: Channels) -> tuple[float, ...]:
    given = values if isinstance(values, Sequence) else (values,)
    return tuple(float(value) for value in given)
