"""Where a training stands, in files that are whole or noticed not to be; the last two are kept."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from retinoscope.core.errors import UnreadableFile, first_line
from retinoscope.core.files import write_atomically
from retinoscope.models.checkpoint import tensors_hash

SCHEMA = 1
_KEPT = 2
_ENTRY = "retinoscope checkpoint"
_NAME = re.compile(r"step-(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """All that a training is made of after some steps."""

    step: int
    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write it whole or not at all, then remove all but the last two."""
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in checkpoint.tensors.items()}
    head = {"schema": SCHEMA, "step": checkpoint.step, "plain": checkpoint.plain}
    head["sha256"] = _digest(tensors, head)
    path = folder / f"step-{checkpoint.step:08d}.safetensors"
    write_atomically(path, save(tensors, {_ENTRY: json.dumps(head)}))
    for old in _files(folder)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def last_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest that is whole; a damaged one is said, removed, and the one before is taken."""
    for path in reversed(_files(folder)):
        try:
            return read_checkpoint(path)
        except UnreadableFile as error:
            say(f"{error} The one before is used.")
            path.unlink(missing_ok=True)
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file; every bit of it is checked."""
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {})[_ENTRY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        if head["schema"] != SCHEMA:
            raise ValueError(f"its form is {head['schema']}, this version's {SCHEMA}")
        if head.pop("sha256") != _digest(tensors, head):
            raise ValueError("its content is not what was written")
        return Checkpoint(int(head["step"]), tensors, dict(head["plain"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(
            f"The checkpoint {str(path)!r} is damaged: {first_line(error)}"
        ) from None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))


def _digest(tensors: Mapping[str, Tensor], head: Mapping[str, Any]) -> str:
    """Of all that a checkpoint holds, the numbers beside the tensors included."""
    text = json.dumps(head, sort_keys=True) + tensors_hash(tensors)
    return hashlib.sha256(text.encode()).hexdigest()
