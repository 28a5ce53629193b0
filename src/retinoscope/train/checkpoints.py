"""Checkpoints of a training, verified by a checksum; the last two are kept."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from retinoscope.core.errors import RunFolderError, UnreadableFile, first_line
from retinoscope.core.files import write_atomically
from retinoscope.models.checkpoint import tensors_hash

SCHEMA = 1
_KEPT = 2
_ENTRY = "retinoscope checkpoint"
_NAME = re.compile(r"step-(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """The complete state of a training after some steps."""

    step: int
    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically, then delete all but the last two."""
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in checkpoint.tensors.items()}
    head = {"schema": SCHEMA, "step": checkpoint.step, "plain": checkpoint.plain}
    head["sha256"] = _digest(tensors, head)
    path = folder / f"step-{checkpoint.step:08d}.safetensors"
    write_atomically(path, save(tensors, {_ENTRY: json.dumps(head)}))
    for old in _files(folder)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def last_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint; a damaged one is reported and deleted.

    Raises:
        RunFolderError: A file cannot be read, or was written by another version.
    """
    found = _files(folder)
    for path in reversed(found):
        try:
            return read_checkpoint(path)
        except UnreadableFile as error:
            before = "The one before is used." if path != found[0] else "It begins anew."
            say(f"{error} {before}")
            path.unlink(missing_ok=True)
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file, verified by its checksum."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunFolderError(
            f"The checkpoint {str(path)!r} cannot be read: {error.strerror}. It is left as it is; "
            "run the same command again when it can."
        ) from error
    try:
        head, tensors = _taken_apart(content)
        schema = head["schema"]
        whole = head.pop("sha256") == _digest(tensors, head)
        checkpoint = Checkpoint(int(head["step"]), tensors, dict(head["plain"]))
    except (SafetensorError, ValueError, KeyError, TypeError, struct.error) as error:
        raise UnreadableFile(
            f"The checkpoint {str(path)!r} is damaged: {first_line(error)}"
        ) from None
    if not whole:
        raise UnreadableFile(
            f"The checkpoint {str(path)!r} is damaged: its content is not what was written."
        )
    if schema != SCHEMA:
        raise RunFolderError(
            f"The checkpoint {str(path)!r} was written by another version of retinoscope (its form "
            f"is {schema}, this version's {SCHEMA}). Go on with that version, or use another "
            "folder with --out (in Python out=…)."
        )
    return checkpoint


def _taken_apart(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and tensors of a file: a length, a JSON header, the tensors' bytes."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return json.loads(header["__metadata__"][_ENTRY]), load(content)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))


def _digest(tensors: Mapping[str, Tensor], head: Mapping[str, Any]) -> str:
    """A hash of everything in a checkpoint, including the plain values."""
    text = json.dumps(head, sort_keys=True) + tensors_hash(tensors)
    return hashlib.sha256(text.encode()).hexdigest()
