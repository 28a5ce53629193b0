"""One question about one subject: its pieces, which are missing, and the tasks for these."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import Partial, Piece, Watcher
from retinoscope.core.subject import SetAside, Subject
from retinoscope.core.wording import duration
from retinoscope.run.key import name_of
from retinoscope.run.shared_pass import SharedPass
from retinoscope.run.task import PREPARED, Task
from retinoscope.run.work import Alone, Question, Work


def work_of(question: Question) -> Work:
    """What does the work: the shared pass for a watcher, else the probe for itself."""
    return SharedPass((question,)) if isinstance(question, Watcher) else Alone(question)


@dataclass
class Job:
    """One question about one subject: its pieces, and which of them are still missing."""

    probe: Question
    """What was asked."""
    work: Work
    """What does the work."""
    key: str
    folder: Path
    pieces: Sequence[Piece]
    missing: dict[str, Piece] = field(default_factory=dict)
    unprepared: bool = False
    """Whether what the probe prepares is missing too."""
    redone: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What makes the result doubtful, such as states that are not finite."""
    found: int = 0
    seconds: float = 0.0
    """Time spent on its pieces, of a shared pass the whole; see ``shared``."""
    shared: list[str] = field(default_factory=list)
    """Other probes that were measured in the same pass and the same time."""
    refused: str = ""
    """Why the probe is not applicable, once that has shown; the others go on."""
    error: RetinoscopeError | None = None
    """What made the probe fail; the others go on."""

    @property
    def stopped(self) -> bool:
        """Whether nothing more is to be done for it."""
        return bool(self.refused) or self.error is not None

    @property
    def stem(self) -> str:
        """The beginning of the names of its files."""
        return f"{name_of(self.probe)}.{self.key}"

    @property
    def names(self) -> list[str]:
        """Of all that is kept for it, in the order in which it is combined."""
        first = [PREPARED] if self.work.prepares else []
        return [*first, *(piece.name for piece in self.pieces)]

    def path(self, piece: Piece | str) -> Path:
        """Where a piece lies."""
        name = piece if isinstance(piece, str) else piece.name
        return self.folder / "pieces" / self.stem / f"{name}.piece"


@dataclass(frozen=True)
class Share:
    """A task, and the jobs that it is done for."""

    task: Task
    jobs: tuple[Job, ...]

    def parts(self, partial: Partial) -> Sequence[Partial | NotApplicable]:
        """What the task gave, for each job its own, or why it gave nothing."""
        return self.task.work.divided(partial)


def shares_of(jobs: Sequence[Job], prepared: Mapping[str, Partial]) -> Iterator[Share]:
    """The missing work: passes over the same images become one.

    Args:
        jobs: What remains to be done.
        prepared: What probes have prepared, by the stems of their jobs.
    """
    for sharing in passes(jobs):
        for piece in sharing[0].pieces:
            lacking = tuple(job for job in sharing if piece.name in job.missing)
            if lacking:
                yield Share(
                    Task(_joined(lacking), piece, prepared.get(lacking[0].stem, {})), lacking
                )


def portions(jobs: Sequence[Job]) -> int:
    """How many tasks the jobs would be if nothing of them were there."""
    return sum(len(sharing[0].names) for sharing in passes(jobs))


def passes(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that are done together, in one pass over the same images; most stand alone."""
    alone: list[list[Job]] = []
    together: dict[Hashable, dict[int | None, list[Job]]] = {}
    for job in jobs:
        if job.work.sharing is None:
            alone.append([job])
        else:
            sizes = together.setdefault(job.work.sharing, {})
            sizes.setdefault(job.work.group, []).append(job)
    for sizes in together.values():
        anyhow = sizes.pop(None, [])  # who sees each image for itself fits in everywhere
        first, *rest = sizes.values() or [[]]
        alone += [[*anyhow, *first], *rest]
    return alone


def _joined(jobs: Sequence[Job]) -> Work:
    return jobs[0].work.joined([job.work for job in jobs[1:]])


def summary(jobs: Sequence[Job], subject: Subject, aside: Sequence[SetAside]) -> str:
    """What was done in one pass, in one line.

    Args:
        jobs: The probes that shared the pass, or the one that stood alone.
        subject: What was measured.
        aside: Images that could not be read.
    """
    names = ", ".join(name_of(job.probe) for job in jobs)
    first = max(jobs, key=lambda job: len(job.missing))
    redone = sum(len(job.redone) for job in jobs)
    together = " in one pass" if len(jobs) > 1 else ""
    return (
        f"{subject.name}: {names} done{together}, {len(first.missing)} of {len(first.pieces)} "
        f"pieces in {duration(first.seconds)}"
        + f", {redone} done again" * bool(redone)
        + f", {len(aside)} images set aside" * bool(aside)
    )
