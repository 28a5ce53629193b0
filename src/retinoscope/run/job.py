"""One probe on one subject: its pieces, which of them are missing, and the tasks that do these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retinoscope.core.probe import Needs, Piece, Probe, Watcher
from retinoscope.core.subject import SetAside, Subject
from retinoscope.run.key import name_of
from retinoscope.run.task import Task

Question = Probe | Watcher


@dataclass
class Job:
    """One probe on one subject: its pieces, and which of them are still missing."""

    probe: Question
    key: str
    folder: Path
    pieces: Sequence[Piece]
    missing: dict[str, Piece] = field(default_factory=dict)
    redone: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    found: int = 0
    seconds: float = 0.0
    """Of work on its pieces; what several watchers see in one pass counts for each."""
    refused: str = ""
    """Why the probe is not applicable, once that has shown; the others go on."""

    @property
    def stem(self) -> str:
        """The beginning of the names of its files."""
        return f"{name_of(self.probe)}.{self.key}"

    def path(self, piece: Piece | str) -> Path:
        """Where a piece lies."""
        name = piece if isinstance(piece, str) else piece.name
        return self.folder / "pieces" / self.stem / f"{name}.piece"


def tasks_of(jobs: Sequence[Job]) -> Iterator[Task]:
    """The missing work: watchers that look at the same images share theirs."""
    together: dict[Needs, list[Job]] = {}
    for job in jobs:
        if isinstance(job.probe, Watcher):
            together.setdefault(job.probe.needs, []).append(job)
        else:
            for piece in job.missing.values():
                yield Task((job.probe,), piece)
    for sharing in together.values():
        for piece in sharing[0].pieces:
            lacking = tuple(job.probe for job in sharing if piece.name in job.missing)
            if lacking:
                yield Task(lacking, piece)


def summary(job: Job, subject: Subject, aside: Sequence[SetAside]) -> str:
    """What was done for a probe, in one line."""
    done = len(job.missing)
    lost = f", {len(aside)} images set aside" if aside else ""
    again = f", {len(job.redone)} done again" if job.redone else ""
    return (
        f"{subject.name}: {name_of(job.probe)} done, {done} of {len(job.pieces)} pieces in "
        f"{job.seconds:.1f} s{again}{lost}"
    )
