"""Writes files atomically."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TEMPORARY = ".unfinished"
"""The file name ending while a file is being written."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path``: a reader sees the old file or the new one, never a part.

    A temporary file next to it is flushed to disk and renamed over it. Missing folders are created.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name[:100]}.", suffix=TEMPORARY
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
