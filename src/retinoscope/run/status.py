"""How far a run is, as its folder says: which models were asked for, and what is unfinished.

Read by reports, so nothing here needs a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from retinoscope.core.files import write_atomically

UNFINISHED, SKIPPED, NOTE = ".unfinished.json", ".skipped.json", ".note.json"
"""What the names of the files of a probe end in while it is unfinished, if it gave no result, and
when it is done."""
_ASKED = "asked.json"


@dataclass(frozen=True)
class AskedModel:
    """A model that an examination was asked for."""

    name: str
    folder: str | None = None
    """The folder of its results within the run; None until the model is loaded."""
    reason: str = ""
    """Why it could not be examined, if so."""


@dataclass(frozen=True)
class Asked:
    """What an examination was asked for."""

    models: tuple[AskedModel, ...] = ()
    command: str = ""
    """The command line, so that a reader can go on with it; empty for a call in Python."""


def write_asked(folder: Path, asked: Asked) -> None:
    """Record what was asked for, in the order in which it is to be shown."""
    content = json.dumps(asdict(asked), ensure_ascii=False, indent=1) + "\n"
    path = folder / _ASKED
    if not path.is_file() or path.read_text(errors="replace") != content:
        write_atomically(path, content)


def read_asked(folder: Path) -> Asked:
    """What was asked for last; nothing where the folder does not say."""
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
    """How many pieces of a probe are there, not counting what was prepared for them."""
    pieces = (folder / "pieces" / stem).glob("*.piece")
    return sum(path.name != "prepared.piece" for path in pieces)
