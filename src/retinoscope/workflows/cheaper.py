"""Suggests a command that takes less time, if the given one would take long."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from retinoscope.workflows.presets import CHEAPEST, PRESETS, QUICK

LONG = 600.0
"""Estimated seconds from which a cheaper command is suggested."""
_CHANGED = ("--probe", "--preset", "--images")


def cheaper_command(
    command: Sequence[str], seconds: Mapping[str, float], images: int, preset: str | None
) -> str:
    """The same command with less to measure.

    Args:
        command: The words of the given command, including ``retinoscope``.
        seconds: The estimated time of each probe, by its specification.
        images: Images per split in the given command.
        preset: The preset of the command, named or by default; None if it names only probes.

    Example:
        >>> cheaper_command(["retinoscope", "examine", "resnet50", "--preset", "paper"],
        ...                 {"fourier": 30.0, "hessian": 4000.0}, 512, "paper")
        'retinoscope examine resnet50 --preset quick'
        >>> cheaper_command(["retinoscope", "examine", "resnet50", "--probe=hessian"],
        ...                 {"hessian": 4000.0}, 512, None)
        'retinoscope examine resnet50 --probe hessian:batches=1'
        >>> slow = {"fourier": 1200.0}
        >>> cheaper_command(["retinoscope", "examine", "vit_giant"], slow, 256, "quick")
        'retinoscope examine vit_giant --images 64'
    """
    kept = _without(command, _CHANGED)
    if preset in PRESETS and preset != QUICK.name:
        given = _images(command)
        wanted = images if given else min(images, QUICK.images or images)
        quick = sum(s for name, s in seconds.items() if name in QUICK.probes) * wanted / images
        fewer = ["--images", _fewer(wanted, quick)] if quick > LONG else given
        return shlex.join([*kept, "--preset", QUICK.name, *fewer])
    if any(_base(name) in CHEAPEST for name in seconds):
        named = [CHEAPEST.get(_base(name), name) for name in seconds]
        probes = [word for name in named for word in ("--probe", name)]
        return shlex.join([*kept, *probes, *_images(command)])
    fewer = _fewer(images, sum(seconds.values()))
    return shlex.join([*_without(command, ("--images",)), "--images", fewer])


def _fewer(images: int, seconds: float) -> str:
    """The number of images that would take half of :data:`LONG`."""
    return str(max(1, int(images * LONG / 2 / seconds)))


def _base(probe: str) -> str:
    return probe.partition(":")[0]


def _without(command: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The words of a command without some flags and their values."""
    kept: list[str] = []
    skip = False
    for word in command:
        if skip:
            skip = False
        elif word in flags:
            skip = True
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept


def _images(command: Sequence[str]) -> list[str]:
    """The flag for the number of images, if the command has it."""
    words = list(command)
    for index, word in enumerate(words):
        if word == "--images":
            return words[index : index + 2]
        if word.startswith("--images="):
            return [word]
    return []
