"""Measures probes: uses results that exist, computes missing pieces, repeats damaged ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retinoscope.core.errors import (
    NotApplicable,
    RetinoscopeError,
    UnreadableFile,
    WrongInput,
)
from retinoscope.core.probe import Partial, Probe, Watcher
from retinoscope.core.result import Result
from retinoscope.core.subject import SetAside, Subject
from retinoscope.core.wording import duration
from retinoscope.models.checkpoint import state_hash
from retinoscope.run.check import check_deterministic, check_result
from retinoscope.run.engines import Engine
from retinoscope.run.engines.local import Here
from retinoscope.run.estimate import Pass, estimate
from retinoscope.run.folder import RunFolder
from retinoscope.run.job import Job, Share, passes, portions, shares_of, summary, work_of
from retinoscope.run.key import key_of, name_of, settings_of
from retinoscope.run.piece import BadPiece, Finished, read_piece, write_piece
from retinoscope.run.plan import Plan
from retinoscope.run.progress import Reporter, watched
from retinoscope.run.reasons import check_there, explained
from retinoscope.run.records import (
    Status,
    forget_unstarted,
    is_note,
    mark_skipped,
    mark_unfinished,
    write_note,
)
from retinoscope.run.status import NOTE
from retinoscope.run.task import PREPARED, Outcome, Task
from retinoscope.run.work import Question

_WORTH_SAYING = 20.0
"""Minimum seconds of work for which an estimate is printed."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_COMMON = ("result", "schema", "question", "reading", "needs", "combine")


class Run:
    """A run folder, and the measurements that are stored in it.

    A run that was interrupted resumes: the same call computes only what is missing.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        fresh: bool = False,
        engine: Engine | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.files = RunFolder(folder, fresh)
        self.engine = engine or Here()
        self.reporter = reporter or watched()

    def measure(self, probe: Question, subject: Subject) -> Result:
        """The result of one probe; raises ``NotApplicable`` if the subject lacks what it needs."""
        (outcome,) = self.measure_all([probe], subject).values()
        if isinstance(outcome, NotApplicable):
            raise outcome
        return outcome

    def measure_all(
        self, probes: Sequence[Question], subject: Subject
    ) -> dict[str, Result | NotApplicable]:
        """The results of several probes by name; all watchers share one pass.

        If a probe is requested twice with different settings, these are appended to its name. A
        probe that fails does not stop the others; its error is raised at the end.
        """
        plan = self.plan(probes, subject, trials=False)
        for one in plan.passes:
            if (one.seconds or 0.0) > _WORTH_SAYING:
                self.reporter.say(
                    f"{subject.name}: {one.names} will take about {duration(one.seconds or 0.0)}"
                )
        self.carry_out(plan, plan.passes)
        for error in plan.failed.values():
            raise error
        return plan.by_name()  # type: ignore[return-value]  # errors were raised

    def plan(self, probes: Sequence[Question], subject: Subject, trials: bool = True) -> Plan:
        """The results that exist already, the work that is missing, and the time it will take.

        Args:
            probes: The probes to measure.
            subject: The model and data to measure.
            trials: Whether to time the shared pass on some images for the estimate. Probes with
                their own estimate are always asked for it.
        """
        if state_hash(subject.backbone) != subject.state:
            raise RetinoscopeError(
                f"The weights of {subject.name} have changed since load_subject. Call "
                "load_subject again, so that the results are stored under the right key."
            )
        folder = self.files.subject_folder(subject)
        if others := self.files.namesakes(subject):
            self.reporter.say(
                f"{subject.name}: the folder also holds results of {len(others)} other version(s) "
                "of this model (weights, size, precision)"
            )
        plan = Plan(subject, folder, tuple(dict.fromkeys(map(_checked, probes))))
        self.reporter.begin(f"checking existing results of {subject.name}", len(plan.asked))
        try:
            jobs = self._look(plan)
            self._start(jobs, plan, trials)
        finally:
            self.reporter.end()
        return plan

    def _start(self, jobs: Sequence[Job], plan: Plan, trials: bool) -> None:
        """Check that the network is reproducible, mark unfinished probes, estimate their time."""
        missing = [job for job in jobs if job.missing or job.unprepared]
        subject = plan.subject
        for needs in dict.fromkeys(job.probe.needs for job in missing):
            for one in (subject, *map(subject.another, needs.others)):
                warnings = check_deterministic(one, needs)
                for text in warnings:
                    self.reporter.say(f"WARNING: {text}")
                for job in missing:
                    if job.probe.needs == needs:
                        job.warnings += warnings
        with self.files.writing():
            forget_unstarted(plan.folder, jobs)
            mark_unfinished(jobs)
        workers = max(1, getattr(self.engine, "jobs", 1))
        plan.passes = [
            estimate(sharing, subject, workers, self.reporter.say, trials)
            for sharing in passes(jobs)
        ]

    def carry_out(self, plan: Plan, chosen: Sequence[Pass]) -> None:
        """Measure the missing pieces of some passes of a plan; adds the answers to the plan."""
        jobs = [job for one in chosen for job in one.jobs]
        self._do_missing(jobs, plan.subject)
        for sharing in (one.jobs for one in chosen):
            done: list[Job] = []
            aside: tuple[SetAside, ...] = ()
            for job in sharing:
                try:
                    if job.refused:
                        raise NotApplicable(job.refused)
                    if job.error is not None:
                        raise job.error
                    plan.answers[job.probe], aside = self._finish(job, plan.subject)
                    done.append(job)
                except RetinoscopeError as reason:
                    plan.answers[job.probe] = reason
                    self._skip(job.probe, plan, reason, job.stem)
            if done:
                self.reporter.say(summary(done, plan.subject, aside))

    def _look(self, plan: Plan) -> list[Job]:
        """Fill in the answers that exist already; returns the jobs that remain."""
        jobs: list[Job] = []
        subject = plan.subject
        for probe in plan.asked:
            try:
                job = self._job(probe, subject, plan.folder)
            except NotApplicable as reason:
                reason = NotApplicable(explained(reason, probe, subject))
                plan.answers[probe] = reason
                self._skip(probe, plan, reason)
                continue
            if (result := self._existing(job)) is not None:
                plan.answers[probe] = result
                self.reporter.say(f"{subject.name}: {name_of(probe)} is already measured")
            else:
                jobs.append(job)
        return jobs

    def _job(self, probe: Question, subject: Subject, folder: Path) -> Job:
        check_there(probe, subject)
        for name in probe.needs.others:
            _check_size(subject, subject.another(name))
        work = work_of(probe)
        if subject.passes and not work.draws:
            raise NotApplicable("is not yet defined for a network that is random at test time")
        job = Job(probe, work, key_of(probe, subject), folder, work.pieces(subject))
        _check_names(job)
        there = {name for name in job.names if self._is_there(job, name, subject)}
        job.missing = {piece.name: piece for piece in job.pieces if piece.name not in there}
        job.found = len(job.pieces) - len(job.missing)
        job.unprepared = PREPARED in job.names and PREPARED not in there
        return job

    def _is_there(self, job: Job, name: str, subject: Subject) -> bool:
        """Whether a piece is stored and intact; reports it if it is damaged."""
        try:
            return read_piece(job.path(name), job.key) is not None
        except BadPiece as problem:
            job.redone.append(f"{name}: {problem}")
            self.reporter.say(
                f"{subject.name}: piece {name} of {name_of(job.probe)} is {problem}; it is "
                "computed again"
            )
            return False

    def _existing(self, job: Job) -> Result | None:
        """The stored result, if it and all the pieces it was combined from are intact."""
        if job.missing or job.unprepared or not is_note(job.folder / f"{job.stem}{NOTE}"):
            return None
        try:
            return job.probe.result.load(job.folder, job.stem)
        except UnreadableFile as error:
            job.redone.append(f"result: {error}")
            self.reporter.say(f"{error} It is combined again from its pieces.")
            return None

    def _do_missing(self, jobs: Sequence[Job], subject: Subject) -> None:
        jobs = [job for job in jobs if (job.missing or job.unprepared) and not job.stopped]
        shares = list(shares_of(jobs, {}))
        first = [Share(Task(job.work, None), (job,)) for job in jobs if job.unprepared]
        if not shares and not first:
            return
        names = ", ".join(name_of(job.probe) for job in jobs)
        done = portions(jobs) - len(first) - len(shares)
        self.reporter.begin(f"{names} of {subject.name}", len(first) + len(shares) + done, done)
        if done:
            self.reporter.say(f"{subject.name}: {done} pieces are already measured")
        try:
            self._do(Here(), first, subject)
            jobs = [job for job in jobs if not job.stopped]
            prepared = {job.stem: self._prepared(job) for job in jobs}
            self._do(self.engine, list(shares_of(jobs, prepared)), subject)
        finally:
            self.reporter.end()

    def _do(self, engine: Engine, shares: Sequence[Share], subject: Subject) -> None:
        if not shares:
            return
        owners = {id(share.task): share for share in shares}
        for task, outcome in engine.run(subject, [share.task for share in shares]):
            share = owners[id(task)]
            names = [name_of(job.probe) for job in share.jobs]
            for job in share.jobs:
                job.seconds += outcome.seconds
                own = name_of(job.probe)
                job.shared = sorted({*job.shared, *names} - {own})
                job.refused = job.refused or outcome.refused
                job.error = job.error or outcome.error
            if outcome.finished is not None:
                self._keep(share, outcome, outcome.finished)
            self.reporter.advance()

    def _prepared(self, job: Job) -> Partial:
        """The output of the probe's ``prepare``, for its pieces; empty for most probes."""
        found = read_piece(job.path(PREPARED), job.key) if PREPARED in job.names else None
        return {} if found is None else found.partial

    def _keep(self, share: Share, outcome: Outcome, finished: Finished) -> None:
        parts = share.parts(finished.partial)
        for job, part in zip(share.jobs, parts, strict=True):
            if isinstance(part, NotApplicable):
                job.refused = str(part)
                continue
            with self.files.writing():
                own = Finished(part, finished.set_aside)
                write_piece(job.path(share.task.name), job.key, own)
            job.notices += [text for text in outcome.notices if text not in job.notices]
        for text in outcome.notices:
            self.reporter.say(text)

    def _finish(self, job: Job, subject: Subject) -> tuple[Result, tuple[SetAside, ...]]:
        """Combine all pieces, read back from disk, and write the result and its note.

        Returns the result, and the images that could not be read.
        """
        finished = []
        for name in job.names:
            try:
                found = read_piece(job.path(name), job.key)
            except BadPiece as problem:
                raise RetinoscopeError(
                    f"Piece {name} of {name_of(job.probe)} was written but is now {problem}. "
                    "Check the disk, and run the same command again."
                ) from None
            if found is None:
                raise RetinoscopeError(
                    f"Piece {name} of {name_of(job.probe)} was written but no longer exists. Does "
                    "another process delete files in the folder? Run the same command again."
                )
            finished.append(found)
        aside = tuple(dict.fromkeys(entry for one in finished for entry in one.set_aside))
        if aside and len(aside) >= len(subject.split(job.probe.needs)):
            raise RetinoscopeError(
                f"None of the {len(aside)} images could be read. The first: {aside[0].reason}"
            )
        partials = [part for one in finished for part in job.work.partials(one.partial)]
        result = job.probe.combine(subject.anatomy, partials)
        result = replace(result, protocol=protocol_of(job.probe, subject, aside))
        check_result(result, subject, job.probe.needs)
        with self.files.writing():
            result.save(job.folder, job.stem)
            write_note(job)
        return result, aside

    def _skip(
        self, probe: Question, plan: Plan, reason: RetinoscopeError, stem: str | None = None
    ) -> None:
        """Record and print why a probe gave no result."""
        status: Status = "not applicable" if isinstance(reason, NotApplicable) else "failed"
        with self.files.writing():
            mark_skipped(plan.folder, probe, status, str(reason), stem)
        words = "is not applicable: it" if status == "not applicable" else "failed:"
        self.reporter.say(f"{plan.subject.name}: {name_of(probe)} {words} {reason}")


def _checked(probe: Question) -> Question:
    """The probe if it is valid; otherwise raises an error that lists what is missing."""
    if isinstance(probe, Probe | Watcher):
        if not _NAME.fullmatch(probe.result.probe):
            raise WrongInput(
                f"{type(probe.result).__name__} {probe.result.__name__} needs a name for its "
                "files, made of letters, digits and ._-, such as probe: ClassVar[str] = "
                "'effective_rank'"
            )
        return probe
    lacking = [
        f"As a {kind} it lacks {', '.join(n for n in (*_COMMON, *own) if not hasattr(probe, n))}"
        for kind, own in (("Probe", ("pieces", "measure")), ("Watcher", ("watch", "gather")))
    ]
    raise WrongInput(f"{probe!r} is not a probe. {'; '.join(lacking)}. See retinoscope.core.probe.")


def _check_size(subject: Subject, other: Subject) -> None:
    """Check that both models take images of the same size, since both see the same images."""
    own, theirs = ("×".join(map(str, s.anatomy.image)) for s in (subject, other))
    if own != theirs:
        named, (height, width) = other.protocol.get("model", other.name), subject.anatomy.image[1:]
        flag, side = (width, width) if height == width else (f"{height}x{width}", (height, width))
        raise NotApplicable(
            f"shows {other.name} the images of {subject.name}, which are {own}, but {other.name} "
            f"expects {theirs}. Choose one size for both: --size {flag} (in Python size={side}); a "
            f"transformer may have to be built for it, as {named}:img_size={side}"
        )


def _check_names(job: Job) -> None:
    """Check that piece names are unique and safe, since they are used as file names."""
    names = [piece.name for piece in job.pieces]
    odd = [name for name in names if not _NAME.fullmatch(name) or name == PREPARED]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if odd or twice:
        raise WrongInput(
            f"{name_of(job.probe)} has pieces with invalid names: "
            f"{', '.join(map(repr, [*odd, *twice]))}. The name of a piece must be unique, consist "
            f"of letters, digits and ._-, and not be {PREPARED!r}."
        )


def measure(
    probe: Question, subject: Subject, folder: Path | str | None = None, **options: Any
) -> Result:
    """The answer of one probe; stored in a run folder if one is given, with its ``options``."""
    if folder is not None:
        return Run(folder, **options).measure(probe, subject)
    with TemporaryDirectory(prefix="retinoscope-") as temporary:
        run = Run(temporary, **options)
        try:
            return run.measure(probe, subject)
        finally:
            run.files.close()


def protocol_of(probe: Question, subject: Subject, aside: Sequence[SetAside]) -> Mapping[str, Any]:
    """Everything that a reader of the figure must know, as plain values."""
    split = subject.split(probe.needs)
    return {
        **subject.protocol,
        **split.protocol,
        "settings": settings_of(probe),
        "question": probe.question,
        "reading": probe.reading,
        "set aside": [list(entry) for entry in aside],
    }
