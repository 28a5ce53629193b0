"""One question about one subject: its pieces, which of them are missing, and their tasks."""

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
    """The work behind a question: the shared pass for a watcher, otherwise the probe itself."""
    return SharedPass((question,)) if isinstance(question, Watcher) else Alone(question)


@dataclass
class Job:
    """One question about one subject: its pieces, and which of them are still missing."""

    probe: Question
    """The probe or watcher that was requested."""
    work: Work
    """The work that computes its pieces."""
    key: str
    folder: Path
    pieces: Sequence[Piece]
    missing: dict[str, Piece] = field(default_factory=dict)
    unprepared: bool = False
    """Whether the result of the probe's ``prepare`` is missing too."""
    redone: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Reasons to doubt the result, such as states that are not finite."""
    found: int = 0
    seconds: float = 0.0
    """Seconds spent on its pieces; for a shared pass the time of the whole pass, see ``shared``."""
    shared: list[str] = field(default_factory=list)
    """Other probes that were measured in the same pass, within the same time."""
    refused: str = ""
    """Why the probe is not applicable, once known; other jobs continue."""
    error: RetinoscopeError | None = None
    """The error that made the probe fail; other jobs continue."""

    @property
    def stopped(self) -> bool:
        """Whether no further work will be done for this job."""
        return bool(self.refused) or self.error is not None

    @property
    def stem(self) -> str:
        """The common beginning of its file names."""
        return f"{name_of(self.probe)}.{self.key}"

    @property
    def names(self) -> list[str]:
        """The names of all its files, in the order in which they are combined."""
        first = [PREPARED] if self.work.prepares else []
        return [*first, *(piece.name for piece in self.pieces)]

    def path(self, piece: Piece | str) -> Path:
        """The file of a piece."""
        name = piece if isinstance(piece, str) else piece.name
        return self.folder / "pieces" / self.stem / f"{name}.piece"


@dataclass(frozen=True)
class Share:
    """A task, and the jobs that it is done for."""

    task: Task
    jobs: tuple[Job, ...]

    def parts(self, partial: Partial) -> Sequence[Partial | NotApplicable]:
        """The output of the task for each job, or the reason why a job got none."""
        return self.task.work.divided(partial)


def shares_of(jobs: Sequence[Job], prepared: Mapping[str, Partial]) -> Iterator[Share]:
    """The missing work as tasks; passes over the same images are merged into one.

    Args:
        jobs: The jobs with missing pieces.
        prepared: The output of each probe's ``prepare``, by the stem of its job.
    """
    for sharing in passes(jobs):
        for piece in sharing[0].pieces:
            lacking = tuple(job for job in sharing if piece.name in job.missing)
            if lacking:
                yield Share(
                    Task(_joined(lacking), piece, prepared.get(lacking[0].stem, {})), lacking
                )


def portions(jobs: Sequence[Job]) -> int:
    """The number of tasks that the jobs would need if no piece existed yet."""
    return sum(len(sharing[0].names) for sharing in passes(jobs))


def passes(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs grouped by pass: those that use the same images share one; most are alone."""
    alone: list[list[Job]] = []
    together: dict[Hashable, dict[int | None, list[Job]]] = {}
    for job in jobs:
        if job.work.sharing is None:
            alone.append([job])
        else:
            sizes = together.setdefault(job.work.sharing, {})
            sizes.setdefault(job.work.group, []).append(job)
    for sizes in together.values():
        anyhow = sizes.pop(None, [])  # a watcher without groups fits into any pass
        first, *rest = sizes.values() or [[]]
        alone += [[*anyhow, *first], *rest]
    return alone


def _joined(jobs: Sequence[Job]) -> Work:
    return jobs[0].work.joined([job.work for job in jobs[1:]])


def summary(jobs: Sequence[Job], subject: Subject, aside: Sequence[SetAside]) -> str:
    """A one-line summary of one pass.

    Args:
        jobs: The probes that shared the pass, or a single one.
        subject: The model and data that were measured.
        aside: Images that could not be read.
    """
    names = ", ".join(name_of(job.probe) for job in jobs)
    first = max(jobs, key=lambda job: len(job.missing))
    redone = sum(len(job.redone) for job in jobs)
    together = " in one pass" if len(jobs) > 1 else ""
    return (
        f"{subject.name}: {names} done{together}, {len(first.missing)} of {len(first.pieces)} "
        f"pieces in {duration(first.seconds)}"
        + f", {redone} repeated" * bool(redone)
        + f", {len(aside)} images could not be read" * bool(aside)
    )
