"""Presets of ``examine``: which probes, with which settings, on how many images.

Presets differ in cost. ``quick`` computes no derivatives of the loss and takes seconds to minutes
on a laptop; ``standard`` adds probes that take minutes; ``paper`` measures as much as the papers
did, which takes hours. All three use the same definitions: where the papers' code differs, its
variant is a setting of the probe (``fourier:axis=paper``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinoscope.core.errors import WrongInput, did_you_mean
from retinoscope.probes import parse_probe

if TYPE_CHECKING:
    from retinoscope.run.work import Question


@dataclass(frozen=True)
class Preset:
    """The probes to measure, and the number of images."""

    name: str
    probes: tuple[str, ...]
    """In the syntax of ``--probe``."""
    images: int | None
    """Images per split; None for all."""
    about: str


_LOOKS = ("accuracy", "fourier", "variance", "consistency", "tokens")
"""Probes that need one or two forward passes over the test images, without settings."""

QUICK = Preset(
    "quick",
    (*_LOOKS, "similarity", "oversmoothing", "attention"),
    256,
    "forward passes only; seconds to a few minutes",
)
STANDARD = Preset(
    "standard",
    (
        *_LOOKS,
        "similarity:permutations=200",
        "oversmoothing",
        "attention",
        "lesion",
        "trajectory:max_images=64",
        "landscape:points=7,max_images=32",
        "hessian:batches=4",
    ),
    512,
    "adds lesions, and probes of the loss landscape and its Hessian; minutes",
)
PAPER = Preset(
    "paper",
    (
        *_LOOKS,
        "similarity:permutations=200",
        "oversmoothing:absolute=64,ranks=64",
        "attention:ranks=64",
        "attention_spectrum:images=64",
        "lesion",
        "lesion:remove=heads,replacement=mean",
        "trajectory:max_images=0",
        "landscape:points=21,max_images=0",
        "hessian:batches=0",
    ),
    None,
    "all images and all mini-batches, as in the papers; hours",
)
PRESETS = {preset.name: preset for preset in (QUICK, STANDARD, PAPER)}

CHEAPEST = {
    "hessian": "hessian:batches=1",
    "landscape": "landscape:points=5,max_images=16",
    "trajectory": "trajectory:max_images=16",
}
"""For each slow probe, settings that make it as fast as possible while still informative."""


def get_preset(name: str) -> Preset:
    """The preset of that name.

    Example:
        >>> get_preset("quick").probes[:3]
        ('accuracy', 'fourier', 'variance')
    """
    if name not in PRESETS:
        raise WrongInput(
            f"There is no preset {name!r}. {did_you_mean(name, list(PRESETS))}There are: "
            f"{', '.join(PRESETS)} (--preset quick, in Python preset='quick')."
        )
    return PRESETS[name]


def chosen(
    preset: str | None, probes: Sequence[str | Question] | None
) -> tuple[list[Question], Preset | None]:
    """The probes to measure, and the preset that they come from.

    Named probes replace those of the preset. If a preset is named as well, they are added to it,
    and replace the preset's version of the same probe.

    Example:
        >>> [probe.result.probe for probe in chosen(None, ["hessian:k=3"])[0]]
        ['hessian']
        >>> both, _ = chosen("quick", ["hessian:k=3", "fourier:bands=9"])
        >>> [probe.bands for probe in both if probe.result.probe == "fourier"]
        [9]
    """
    named = [parse_probe(probe) if isinstance(probe, str) else probe for probe in probes or ()]
    if named and preset is None:
        return named, None
    base = get_preset(preset or QUICK.name)
    names = {probe.result.probe for probe in named if hasattr(probe, "result")}
    kept = [probe for probe in map(parse_probe, base.probes) if probe.result.probe not in names]
    return [*kept, *named], base
