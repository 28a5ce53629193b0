"""A run folder: what was measured, where it lies, and who may write.

::

    run.json                                  marks the folder as ours
    MODEL.1a2b3c4d/                           one subject: a model with its weights
        subject.json, anatomy.json
        training.json, log.jsonl              how its weights were learned, where that is known
        fourier.KEY.npz, .json, .note.json    a result; where the note is, all is whole
        fourier.skipped.json                  why a probe was not applicable
        pieces/fourier.KEY/0000000.piece      what the result was combined from
    report.html
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import alone, is_foreign, open_lock, safe_name, share, sweep, writing
from retinoscope.core.subject import HISTORY, Subject

SCHEMA = 1
_MARK = "run.json"
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
        if (
            self.path.is_dir()
            and not mark.exists()
            and any(is_foreign(path, _MARK) for path in self.path.iterdir())
        ):
            raise RunFolderError(
                f"{str(self.path)!r} is not empty and no run folder: it holds other files. "
                "Name a new or an empty folder with --out."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        # The lock comes first: whoever is alone may sweep, and nobody else writes meanwhile.
        self._lock = open_lock(self.path)
        try:
            if alone(self._lock):
                sweep(self.path)
                if fresh:
                    self._empty()
            elif fresh:
                raise RunFolderError(
                    f"{str(self.path)!r} is in use, by another process or by a Run that is still "
                    "open here, so it cannot be started afresh now. Wait, close it, or use another "
                    "folder with --out."
                )
            share(self._lock)
            if mark.exists():
                _check_mark(mark)
            else:
                write_atomically(mark, json.dumps({"retinoscope run": SCHEMA}) + "\n")
        except BaseException:
            self.close()
            raise

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
            for name, content in {
                "anatomy.json": subject.anatomy.to_json().encode(),
                **_history(subject.history),
                "subject.json": f"{json.dumps(described, indent=1, ensure_ascii=False)}\n".encode(),
            }.items():
                path = folder / name
                if not path.is_file() or path.read_bytes() != content:
                    write_atomically(path, content)
        return folder

    def namesakes(self, subject: Subject) -> list[Path]:
        """Folders of the same model with other weights, size or precision."""
        own = self.path / f"{safe_name(subject.name)}.{subject.fingerprint[:8]}"
        found = self.path.glob(f"{_escaped(safe_name(subject.name))}.????????")
        return sorted(folder for folder in found if folder != own)

    def writing(self) -> AbstractContextManager[None]:
        """Turns what a disk or a file system refuses into an error that says what to do."""
        return writing(self.path)


def _history(folder: Path | None) -> dict[str, bytes]:
    """The files of a training by name; one that has gone since is no reason not to measure."""
    found: dict[str, bytes] = {}
    if folder is None:
        return found
    for name in HISTORY:
        with suppress(OSError):
            found[name] = (folder / name).read_bytes()
    return found


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


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
