"""A command that takes less time, where the one that was given would take long."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from retinoscope.workflows.presets import CHEAPEST, PRESETS, QUICK

LONG = 600.0
"""Seconds from which on a cheaper command is offered."""
_CHANGED = ("--probe", "--preset", "--images")


def cheaper_command(
    command: Sequence[str], seconds: Mapping[str, float], images: int, preset: str | None
) -> str:
    """The same command with less to measure.

    Args:
        command: The words of the command that was given, ``retinoscope`` included.
        seconds: The time that each probe will take, by the way it is written.
        images: How many images per split the command measures.
        preset: The preset that it names or stands for; None where it names probes only.

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
    """So many images that they take half the time from which on a command counts as long."""
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
