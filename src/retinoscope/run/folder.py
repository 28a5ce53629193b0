"""The layout of a run folder, and the lock that controls who may write to it.

::

    run.json                                  marks the folder as ours
    MODEL.1a2b3c4d/                           one subject: a model with its weights
        subject.json, anatomy.json
        training.json, log.jsonl              how its weights were trained, if known
        fourier.KEY.npz, .json, .note.json    a result; complete if the note exists
        fourier.1a2b3c4d.skipped.json         why a probe was not applicable
        pieces/fourier.KEY/0000000.piece      what the result was combined from
    report.html
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import alone, claim, read_mark, safe_name, share, sweep, writing
from retinoscope.core.history import LOG, MARK
from retinoscope.core.subject import Subject

SCHEMA = 1
_MARK, _KIND = "run.json", "retinoscope run"
_SUBJECT = re.compile(r"\.[0-9a-f]{8}$")


class RunFolder:
    """The files of a run; one or several processes may open it at the same time."""

    def __init__(self, path: Path | str, fresh: bool = False) -> None:
        self.path = Path(path)
        # Take the lock first: only a process that is alone may clean up, and no other one writes
        # then.
        self._lock = claim(self.path, _MARK, "run")
        with self.writing():
            self._claim(fresh)

    def _claim(self, fresh: bool) -> None:
        try:
            if alone(self._lock):
                sweep(self.path)
                if fresh:
                    self._empty()
            elif fresh:
                raise RunFolderError(
                    f"{str(self.path)!r} is in use, by another process or by a Run that is still "
                    "open here, so --fresh cannot empty it now. Wait, close the other Run, or use "
                    "another folder with --out."
                )
            share(self._lock)
            if (self.path / _MARK).exists():
                read_mark(self.path, _MARK, _KIND, SCHEMA)
            else:
                write_atomically(self.path / _MARK, json.dumps({_KIND: SCHEMA}) + "\n")
        except BaseException:
            self.close()
            raise

    def _empty(self) -> None:
        """Remove all measurements, and nothing else."""
        for folder in self.path.iterdir():
            if folder.is_dir() and _SUBJECT.search(folder.name):
                shutil.rmtree(folder)
        (self.path / "report.html").unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder, so that another process may start it afresh."""
        self._lock.close()

    def subject_folder(self, subject: Subject) -> Path:
        """The folder with everything about a subject; created if necessary."""
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
        """Convert errors of the disk or the file system into messages that say what to do."""
        return writing(self.path)


def _history(folder: Path | None) -> dict[str, bytes]:
    """The files of a training by name; files deleted since then are skipped."""
    found: dict[str, bytes] = {}
    if folder is None:
        return found
    for name in (MARK, LOG):
        with suppress(OSError):
            found[name] = (folder / name).read_bytes()
    return found


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)
