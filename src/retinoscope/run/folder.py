"""A run folder: what was measured, where it lies, and who may write.

::

    run.json                                  marks the folder as ours
    MODEL.1a2b3c4d/                           one subject: a model with its weights
        subject.json, anatomy.json
        fourier.KEY.npz, .json, .note.json    a result; where the note is, all is whole
        fourier.skipped.json                  why a probe was not applicable
        pieces/fourier.KEY/0000000.piece      what the result was combined from
    report.html
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import TEMPORARY, write_atomically
from retinoscope.core.subject import Subject

try:
    import fcntl
except ImportError:  # not on Windows; there, two processes must not share a folder
    fcntl = None

SCHEMA = 1
_MARK = "run.json"
_LONGEST = 80
_LOCK = ".lock"
_SUBJECT = re.compile(r"\.[0-9a-f]{8}$")


class RunFolder:
    """The files of a run; opened by one process or by several at once."""

    def __init__(self, path: Path | str, fresh: bool = False) -> None:
        self.path = Path(path)
        with self.writing():
            self._claim(fresh)

    def _claim(self, fresh: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{str(self.path)!r} is a file, not a folder for a run.")
        mark = self.path / _MARK
        if self.path.is_dir() and not mark.exists() and any(map(_is_foreign, self.path.iterdir())):
            raise RunFolderError(
                f"{str(self.path)!r} is not empty and no run folder: it holds other files. "
                "Name a new or an empty folder with --out."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        # The lock comes first: whoever is alone may sweep, and nobody else writes meanwhile.
        self._lock = _open_lock(self.path)
        try:
            if _alone(self._lock):
                self._sweep()
                if fresh:
                    self._empty()
            elif fresh:
                raise RunFolderError(
                    f"{str(self.path)!r} is in use, by another process or by a Run that is still "
                    "open here, so it cannot be started afresh now. Wait, close it, or use another "
                    "folder with --out."
                )
            _share(self._lock)
            if mark.exists():
                _check_mark(mark)
            else:
                write_atomically(mark, json.dumps({"retinoscope run": SCHEMA}) + "\n")
        except BaseException:
            self.close()
            raise

    def _sweep(self) -> None:
        """Remove what processes that were killed while writing have left behind."""
        for file in self.path.rglob(f".*{TEMPORARY}"):
            file.unlink(missing_ok=True)

    def _empty(self) -> None:
        """Remove all that was measured, and nothing else."""
        for folder in self.path.iterdir():
            if folder.is_dir() and _SUBJECT.search(folder.name):
                shutil.rmtree(folder)
        (self.path / "report.html").unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the folder, so that another process may start it afresh."""
        self._lock.close()

    def subject_folder(self, subject: Subject) -> Path:
        """Where everything about a subject lies; made if need be."""
        folder = self.path / f"{safe_name(subject.name)}.{subject.fingerprint[:8]}"
        described = {
            "schema": SCHEMA,
            "name": subject.name,
            "weights": subject.weights,
            "fingerprint": subject.fingerprint,
            "protocol": dict(subject.protocol),
        }
        with self.writing():
            for name, text in (
                ("anatomy.json", subject.anatomy.to_json()),
                ("subject.json", json.dumps(described, indent=1, ensure_ascii=False) + "\n"),
            ):
                path = folder / name
                if not path.is_file() or path.read_bytes() != text.encode():
                    write_atomically(path, text)
        return folder

    def namesakes(self, subject: Subject) -> list[Path]:
        """Folders of the same model with other weights, size or precision."""
        own = self.path / f"{safe_name(subject.name)}.{subject.fingerprint[:8]}"
        found = self.path.glob(f"{_escaped(safe_name(subject.name))}.????????")
        return sorted(folder for folder in found if folder != own)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns what a disk or a file system refuses into an error that says what to do."""
        try:
            yield
        except OSError as error:
            raise RunFolderError(_explained(error, self.path)) from error


def safe_name(name: str) -> str:
    """A name as that of a file or folder: no separators, no leading dot, not too long.

    Example:
        >>> safe_name("../a model.py:build")
        'a-model.py-build'
    """
    safe = re.sub(r"[^A-Za-z0-9_.=,-]+", "-", name).strip("-.")[:_LONGEST]
    return safe or "model"


def _is_foreign(path: Path) -> bool:
    """Whether a file belongs to none of us: others may be marking the folder at this moment."""
    return not path.name.endswith(TEMPORARY) and path.name not in (_LOCK, _MARK)


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _explained(error: OSError, path: Path) -> str:
    kept = "What was finished before is kept and whole."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk of {str(path)!r} is full. {kept} Free some space and run the same command "
            "again, or use another folder with --out."
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return (
            f"{str(path)!r} cannot be written to ({error.strerror}). {kept} Name a folder of your "
            "own with --out."
        )
    return f"{str(path)!r} cannot be used: {error}. {kept}"


def _check_mark(mark: Path) -> None:
    try:
        found: Any = json.loads(mark.read_text()).get("retinoscope run")
    except (ValueError, AttributeError):
        found = None
    if found != SCHEMA:
        raise RunFolderError(
            f"{str(mark.parent)!r} was made by another version of retinoscope (its layout is "
            f"{found}, this version's {SCHEMA}). Use another folder with --out."
        )


def _open_lock(folder: Path) -> IO[bytes]:
    return (folder / _LOCK).open("ab")


def _alone(lock: IO[bytes]) -> bool:
    """Whether no other process has the folder open; if so, it has to wait for us."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _share(lock: IO[bytes]) -> None:
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_SH)
