"""The folder of a search: its settings, its trainings, its answer.

::

    search.json                          the model, the recipe, the settings: marks the folder
    candidates/0-0-1/seed-0/             a training
    candidates/0-0-1/built-seed-0.safetensors    what it began with
    result.json, result.npz              the answer
    winner.safetensors                   the best network: a model's name
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import claim_alone, read_mark, writing
from retinoscope.train.recipe import differences
from retinoscope.train.search.base import Plan

SCHEMA = 1
MARK, STEM, WINNER = "search.json", "result", "winner.safetensors"
_KIND = "retinoscope search"


def place(plan: Plan, seed: int) -> Path:
    """Where in the folder of a search the training of a plan by a seed lies.

    Example:
        >>> place((0, 1), 2).as_posix()
        'candidates/0-1/seed-2'
    """
    return Path("candidates") / "-".join(map(str, plan)) / f"seed-{seed}"


@contextmanager
def claimed(folder: Path, asked: Mapping[str, Any]) -> Iterator[None]:
    """The folder for this search alone, while it lasts."""
    with closing(claim_alone(folder, MARK, "search")):
        if (folder / MARK).is_file():
            _check(folder, asked)
        yield


def mark(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write which search the folder is for."""
    with writing(folder):
        write_atomically(folder / MARK, json.dumps({_KIND: SCHEMA} | dict(asked), indent=1) + "\n")


def _check(folder: Path, asked: Mapping[str, Any]) -> None:
    """Refuse the folder of another search."""
    found = read_mark(folder, MARK, _KIND, SCHEMA)
    if lines := differences(found, asked):
        raise RunFolderError(
            f"{str(folder)!r} holds another search, which this one would mix with: "
            f"{'; '.join(lines)}. Give the old settings to go on with it, or another folder with "
            "--out (in Python out=…)."
        )
