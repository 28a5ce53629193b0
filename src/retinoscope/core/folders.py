"""Folders that are written by one process at a time: locks, leftovers, and what a disk refuses."""

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
except ImportError:  # not on Windows; there, two processes must not share a folder
    fcntl = None

LOCK = ".lock"
_LONGEST = 80


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what a disk or a file system refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(_explained(error, folder)) from error


def sweep(folder: Path) -> None:
    """Remove what processes that were killed while writing have left behind."""
    for file in folder.rglob(f".*{TEMPORARY}"):
        file.unlink(missing_ok=True)


def claim(folder: Path, mark: str, what: str) -> IO[bytes]:
    """Make a folder for a run, a training or a search, or open one; refuses those of others.

    Args:
        folder: Its path.
        mark: The file that marks it as ours.
        what: What it is for, in a word.

    Returns:
        The file by which processes keep out of each other's way; it locks nothing yet.
    """
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise RunFolderError(f"{str(folder)!r} is a file, not a folder for a {what}.")
        others = folder.iterdir() if folder.is_dir() else ()
        if not (folder / mark).exists() and any(_is_foreign(path, mark) for path in others):
            raise RunFolderError(
                f"{str(folder)!r} is not empty and no {what} folder: it holds other files. Name a "
                "new or an empty folder with --out (in Python out=…)."
            )
        folder.mkdir(parents=True, exist_ok=True)
        return _open_lock(folder)


def claim_alone(folder: Path, mark: str, what: str) -> IO[bytes]:
    """The same for one process at a time, which also removes what killed ones have left."""
    lock = claim(folder, mark, what)
    if not alone(lock):
        lock.close()
        raise RunFolderError(
            f"{str(folder)!r} is in use: another process has a {what} there. Wait for it, or name "
            "another folder with --out (in Python out=…)."
        )
    with writing(folder):
        sweep(folder)
    return lock


def read_mark(folder: Path, mark: str, kind: str, schema: int) -> dict[str, Any]:
    """What the file that marks a folder says; refuses other layouts and damaged ones."""
    try:
        found: dict[str, Any] = dict(json.loads((folder / mark).read_bytes()))
    except (ValueError, TypeError) as error:
        raise RunFolderError(
            f"{str(folder / mark)!r} is damaged ({error}), so nobody knows what the folder holds. "
            "Use another folder with --out (in Python out=…)."
        ) from None
    if (form := found.pop(kind, None)) != schema:
        raise RunFolderError(
            f"{str(folder)!r} was made by another version of retinoscope (its layout is {form}, "
            f"this version's {schema}). Use another folder with --out (in Python out=…)."
        )
    return found


def alone(lock: IO[bytes]) -> bool:
    """Whether no other process has the folder open; if so, it has to wait for us."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(lock: IO[bytes]) -> None:
    """Let others in as well."""
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_SH)


def safe_name(name: str) -> str:
    """A name as that of a file or folder: no separators, no leading dot, not too long.

    Example:
        >>> safe_name("../a model.py:build")
        'a-model.py-build'
    """
    safe = re.sub(r"[^A-Za-z0-9_.=,-]+", "-", name).strip("-.")[:_LONGEST]
    return safe or "model"


def _open_lock(folder: Path) -> IO[bytes]:
    """A file whose lock ends with this process, even if others that it has forked live on."""
    file = (folder / LOCK).open("ab")
    if hasattr(os, "register_at_fork"):
        # A lock belongs to all who have inherited the file; what was killed must not hold it.
        held = weakref.ref(file)
        os.register_at_fork(after_in_child=lambda: (kept := held()) and kept.close())
    return file


def _is_foreign(path: Path, mark: str) -> bool:
    """Whether a file belongs to none of us: others may be marking the folder at this moment."""
    return not path.name.endswith(TEMPORARY) and path.name not in (LOCK, mark)


def _explained(error: OSError, path: Path) -> str:
    kept = "What was finished before is kept and whole."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk of {str(path)!r} is full. {kept} Free some space and run the same command "
            "again, or use another folder with --out (in Python out=…)."
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return (
            f"{str(path)!r} cannot be written to ({error.strerror}). {kept} Name a folder of your "
            "own with --out (in Python out=…)."
        )
    return f"{str(path)!r} cannot be used: {error}. {kept}"
