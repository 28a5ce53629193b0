"""The folder of a search: settings, trainings and result.

::

    search.json                          model, recipe and settings; identifies the folder
    candidates/0-0-1/seed-0/             a training
    candidates/0-0-1/built-seed-0.safetensors    its network before training
    result.json, result.npz              the result
    winner.safetensors                   the best network; can be used as a model's name
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
    """The training folder of a plan and a seed, relative to the folder of the search.

    Example:
        >>> place((0, 1), 2).as_posix()
        'candidates/0-1/seed-2'
    """
    return Path("candidates") / "-".join(map(str, plan)) / f"seed-{seed}"


@contextmanager
def claimed(folder: Path, asked: Mapping[str, Any]) -> Iterator[None]:
    """Lock the folder for this search inside the block; refuse that of another search."""
    with closing(claim_alone(folder, MARK, "search")):
        if (folder / MARK).is_file():
            _check(folder, asked)
        yield


def mark(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write the settings of the search into its folder."""
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
