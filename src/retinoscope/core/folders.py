"""Folders that are written by one process at a time: locks, clean-up, and disk errors."""

from __future__ import annotations

import errno
import json
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import TEMPORARY

try:
    import fcntl
except ImportError:  # not on Windows, where two processes must not share a folder
    fcntl = None

LOCK = ".lock"
_LONGEST = 80


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert errors of the disk or the file system into messages that say what to do."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(_explained(error, folder)) from error


def sweep(folder: Path) -> None:
    """Remove temporary files left by processes that were killed while writing."""
    for file in folder.rglob(f".*{TEMPORARY}"):
        file.unlink(missing_ok=True)


def claim(folder: Path, mark: str, what: str) -> IO[bytes]:
    """Create or open a folder for a run, a training or a search; fails if it has other content.

    Args:
        folder: Its path.
        mark: The name of the file that marks it as ours.
        what: The purpose of the folder, in one word.

    Returns:
        The lock file of the folder; it is not locked yet.
    """
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise RunFolderError(
                f"{str(folder)!r} is a file, but a {what} needs a folder. Choose another path "
                "with --out (in Python out=…)."
            )
        others = folder.iterdir() if folder.is_dir() else ()
        if not (folder / mark).exists() and any(_is_foreign(path, mark) for path in others):
            raise RunFolderError(
                f"{str(folder)!r} is not empty and not a {what} folder: it contains other files. "
                "Choose a new or empty folder with --out (in Python out=…)."
            )
        folder.mkdir(parents=True, exist_ok=True)
        return _open_lock(folder)


def claim_alone(folder: Path, mark: str, what: str) -> IO[bytes]:
    """The same for exclusive use by one process, which also cleans up after killed ones."""
    lock = claim(folder, mark, what)
    if not alone(lock):
        lock.close()
        raise RunFolderError(
            f"{str(folder)!r} is in use: another process has a {what} there. Wait for it to "
            "finish, or choose another folder with --out (in Python out=…)."
        )
    with writing(folder):
        sweep(folder)
    return lock


def read_mark(folder: Path, mark: str, kind: str, schema: int) -> dict[str, Any]:
    """The content of the file that marks a folder; fails for other layouts and damaged files."""
    try:
        found: dict[str, Any] = dict(json.loads((folder / mark).read_bytes()))
    except (ValueError, TypeError) as error:
        raise RunFolderError(
            f"{str(folder / mark)!r} is damaged ({error}), so the content of the folder cannot be "
            "identified. Use another folder with --out (in Python out=…)."
        ) from None
    if (form := found.pop(kind, None)) != schema:
        raise RunFolderError(
            f"{str(folder)!r} was made by another version of retinoscope (layout {form}; this "
            f"version uses {schema}). Use another folder with --out (in Python out=…)."
        )
    return found


def alone(lock: IO[bytes]) -> bool:
    """Lock the folder exclusively; False if another process has it open."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(lock: IO[bytes]) -> None:
    """Allow other processes as well."""
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_SH)


def safe_name(name: str) -> str:
    """Convert a name to a safe file or folder name: no separators, no leading dot, not too long.

    Example:
        >>> safe_name("../a model.py:build")
        'a-model.py-build'
    """
    safe = re.sub(r"[^A-Za-z0-9_.=,-]+", "-", name).strip("-.")[:_LONGEST]
    return safe or "model"


def _open_lock(folder: Path) -> IO[bytes]:
    """Open the lock file; its lock ends with this process, even if forked processes live on."""
    file = (folder / LOCK).open("ab")
    if hasattr(os, "register_at_fork"):
        # All processes that inherit the file hold its lock, so children close it: otherwise they
        # would keep the lock after their parent was killed.
        held = weakref.ref(file)
        os.register_at_fork(after_in_child=lambda: (kept := held()) and kept.close())
    return file


def _is_foreign(path: Path, mark: str) -> bool:
    """Whether a file is not ours; another process may be marking the folder at this moment."""
    return not path.name.endswith(TEMPORARY) and path.name not in (LOCK, mark)


def is_full(error: OSError) -> bool:
    """Whether a file cannot be written because there is no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _explained(error: OSError, path: Path) -> str:
    kept = "Results finished before are kept."
    if is_full(error):
        return (
            f"The disk of {str(path)!r} is full. {kept} Free some space and run the same command "
            "again, or use another folder with --out (in Python out=…)."
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return (
            f"{str(path)!r} cannot be written to ({error.strerror}). {kept} Choose a writable "
            "folder with --out (in Python out=…)."
        )
    return f"{str(path)!r} cannot be used: {error}. {kept} Use another folder with --out."
