"""The file of one finished piece, which can be checked for its origin and completeness.

One line of JSON (key, piece, unreadable images, hash of the rest), then the arrays as ``.npz``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from retinoscope.core.files import write_atomically
from retinoscope.core.probe import Partial
from retinoscope.core.result import pack, seal, unpack
from retinoscope.core.subject import SetAside

_FORMAT = 1


@dataclass(frozen=True)
class Finished:
    """The output of a piece, and the images that could not be read."""

    partial: Partial
    set_aside: tuple[SetAside, ...] = ()


class BadPiece(Exception):
    """The file of a piece exists, but its content is not that piece."""


def write_piece(path: Path, key: str, finished: Finished) -> None:
    """Write the file atomically."""
    packed = pack(finished.partial)
    head = {
        "format": _FORMAT,
        "key": key,
        "piece": path.stem,
        "set_aside": [list(entry) for entry in finished.set_aside],
    }
    digest = seal(head, packed)
    line = json.dumps(head | {"sha256": digest}, ensure_ascii=False)
    write_atomically(path, line.encode() + b"\n" + packed)


def read_piece(path: Path, key: str) -> Finished | None:
    """Read a piece; None if there is no file. Raises :class:`BadPiece`, which names the problem."""
    try:
        line, newline, packed = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadPiece(f"unreadable ({error.strerror})") from None
    try:
        head = json.loads(line)
        digest = head.pop("sha256")
        aside = tuple(SetAside(*entry) for entry in head["set_aside"])
        found = head["format"], head["key"], head["piece"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadPiece("damaged") from None
    if not newline or digest != seal(head, packed):
        raise BadPiece("damaged")
    if found != (_FORMAT, key, path.stem):
        raise BadPiece("stale: it belongs to other settings, weights or data")
    return Finished(unpack(packed), aside)
