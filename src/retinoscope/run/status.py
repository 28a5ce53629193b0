"""The status of a run, read from its folder: requested models and unfinished probes.

Reports use this module, so nothing here needs a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from retinoscope.core.files import write_atomically

UNFINISHED, SKIPPED, NOTE = ".unfinished.json", ".skipped.json", ".note.json"
"""File name endings of a probe that is unfinished, that gave no result, and that is done."""
_ASKED = "asked.json"


@dataclass(frozen=True)
class AskedModel:
    """A model that was to be examined."""

    name: str
    folder: str | None = None
    """The folder of its results within the run; None until the model is loaded."""
    reason: str = ""
    """Why it could not be examined; empty if it could."""


@dataclass(frozen=True)
class Asked:
    """The request of an examination."""

    models: tuple[AskedModel, ...] = ()
    command: str = ""
    """The command line, so that a reader can resume it; empty for a call in Python."""


def write_asked(folder: Path, asked: Asked) -> None:
    """Record the request, with models in display order."""
    content = json.dumps(asdict(asked), ensure_ascii=False, indent=1) + "\n"
    path = folder / _ASKED
    if not path.is_file() or path.read_text(errors="replace") != content:
        write_atomically(path, content)


def read_asked(folder: Path) -> Asked:
    """The latest request; empty if the folder has none."""
    try:
        plain = json.loads((folder / _ASKED).read_bytes())
        return Asked(tuple(AskedModel(**one) for one in plain["models"]), str(plain["command"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Asked(tuple(AskedModel(name, name) for name in _order(folder)))


def _order(folder: Path) -> Sequence[str]:
    """The folders of the models in the file that earlier versions wrote."""
    try:
        return [str(name) for name in json.loads((folder / "order.json").read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def finished_pieces(folder: Path, stem: str) -> int:
    """The number of finished pieces of a probe, not counting the output of ``prepare``."""
    pieces = (folder / "pieces" / stem).glob("*.piece")
    return sum(path.name != "prepared.piece" for path in pieces)
