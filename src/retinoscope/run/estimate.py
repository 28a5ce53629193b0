"""Estimates how long the missing work will take on this machine, from short trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import Foreseeing, Piece
from retinoscope.core.subject import Subject
from retinoscope.numerics.timing import seconds_each
from retinoscope.run.job import Job
from retinoscope.run.key import name_of
from retinoscope.run.shared_pass import SharedPass


@dataclass(frozen=True)
class Pass:
    """Probes of one subject that are measured together, with the estimated time."""

    jobs: tuple[Job, ...]
    seconds: float | None
    """Estimated seconds; None if no estimate is possible."""

    @property
    def names(self) -> str:
        """The names of the probes, for display.

        Example:
            >>> Pass((), None).names
            ''
        """
        return ", ".join(name_of(job.probe) for job in self.jobs)


def estimate(
    jobs: Sequence[Job],
    subject: Subject,
    workers: int,
    say: Callable[[str], None],
    trials: bool = True,
) -> Pass:
    """Estimate how long these probes will take together.

    If a probe turns out not to be applicable, the reason is recorded in its job.

    Args:
        jobs: Probes that share one pass, or a single one.
        subject: The model and data to measure.
        workers: Processes that share the pieces.
        say: Called with each warning about a deviation from the request.
        trials: Whether to time a shared pass on some images; if not, its time is unknown.
    """
    if not any(job.missing for job in jobs):
        return Pass(tuple(jobs), 0.0)
    context = Context(say=say, load=subject.another)
    pieces = len(_lacking(jobs))
    try:
        each = _seconds(jobs, subject, context, trials)
    except NotApplicable as reason:
        for job in jobs:
            job.refused = job.refused or str(reason)
        return Pass(tuple(jobs), 0.0)
    except RetinoscopeError as error:
        for job in jobs:
            job.error = job.error or error
        return Pass(tuple(jobs), 0.0)
    return Pass(tuple(jobs), None if each is None else each * pieces / min(workers, pieces))


def _seconds(jobs: Sequence[Job], subject: Subject, context: Context, trials: bool) -> float | None:
    """The time of one piece in seconds; None if unknown."""
    work = jobs[0].work.joined([job.work for job in jobs[1:]])
    if isinstance(work, SharedPass):
        if not trials:
            return None
        total = sum(p.what["stop"] - p.what["start"] for p in _lacking(jobs))
        return _per_image(work, subject, context) * total / len(_lacking(jobs))
    probe = jobs[0].probe
    return probe.seconds(subject, context) if isinstance(probe, Foreseeing) else None


def _lacking(jobs: Sequence[Job]) -> list[Piece]:
    """The pieces that at least one of the jobs is missing."""
    return [piece for piece in jobs[0].pieces if any(piece.name in job.missing for job in jobs)]


def _per_image(work: SharedPass, subject: Subject, context: Context) -> float:
    """The time of a shared pass per image in seconds, including reading."""
    return seconds_each(
        lambda n: work.measure(subject, Piece("trial", {"start": 0, "stop": n}), context),
        len(subject.split(work.needs)),
        subject.batch,
        work.group or 1,
    )
