"""Records of a run folder about probes without a result: unfinished, not applicable or failed.

Each record is a small JSON file next to the results of a subject, so that a report can be made
from the folder alone, whenever the run was stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from retinoscope.core.files import write_atomically
from retinoscope.run.job import Job
from retinoscope.run.key import name_of, settings_of
from retinoscope.run.status import NOTE, SKIPPED, UNFINISHED, finished_pieces
from retinoscope.run.work import Question

Status = Literal["not applicable", "failed"]


def mark_unfinished(jobs: Iterable[Job]) -> None:
    """Record that these probes have started; deletes earlier records of why they were skipped."""
    for job in jobs:
        plain = {
            "probe": name_of(job.probe),
            "settings": settings_of(job.probe),
            "pieces": len(job.pieces),
        }
        _write(job.folder / f"{job.stem}{UNFINISHED}", plain)
        _forget_skipped(job.folder, job.probe)


def forget_unstarted(folder: Path, jobs: Iterable[Job]) -> None:
    """Remove the records of probes that are no longer requested and have no finished piece."""
    asked = {job.stem for job in jobs}
    for path in folder.glob(f"*{UNFINISHED}"):
        stem = path.name.removesuffix(UNFINISHED)
        if stem not in asked and not finished_pieces(folder, stem):
            path.unlink(missing_ok=True)


def mark_skipped(
    folder: Path, probe: Question, status: Status, reason: str, stem: str | None = None
) -> None:
    """Record why a probe gave no result."""
    plain = {
        "probe": name_of(probe),
        "settings": settings_of(probe),
        "status": status,
        "reason": reason,
    }
    _write(_skipped(folder, probe), plain)
    if stem is not None:
        (folder / f"{stem}{UNFINISHED}").unlink(missing_ok=True)


def write_note(job: Job) -> None:
    """Record how a result was made; the result is complete if this file exists."""
    note = {
        "key": job.key,
        "seconds": round(job.seconds, 3),
        "shared": job.shared,
        "pieces": len(job.pieces),
        "found": job.found,
        "redone": job.redone,
        "warnings": job.warnings,
        "notices": job.notices,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    path = job.folder / f"{job.stem}{NOTE}"
    write_atomically(path, json.dumps(note, indent=1, ensure_ascii=False) + "\n")
    (job.folder / f"{job.stem}{UNFINISHED}").unlink(missing_ok=True)
    _forget_skipped(job.folder, job.probe)


def is_note(path: Path) -> bool:
    """Whether a complete note exists."""
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def _write(path: Path, plain: dict[str, Any]) -> None:
    content = json.dumps(plain, ensure_ascii=False) + "\n"
    if not path.is_file() or path.read_text(errors="replace") != content:
        write_atomically(path, content)


def _forget_skipped(folder: Path, probe: Question) -> None:
    _skipped(folder, probe).unlink(missing_ok=True)
    # The name that earlier versions used.
    (folder / f"{name_of(probe)}{SKIPPED}").unlink(missing_ok=True)


def _skipped(folder: Path, probe: Question) -> Path:
    """The record of why a probe with these settings gave no result."""
    asked = json.dumps([settings_of(probe), repr(probe.needs)], sort_keys=True, default=str)
    digits = hashlib.sha256(asked.encode()).hexdigest()[:8]
    return folder / f"{name_of(probe)}.{digits}{SKIPPED}"
