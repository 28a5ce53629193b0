"""The complete analysis in one call: names in, a report out."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retinoscope.core.errors import NotApplicable, RetinoscopeError, WrongInput
from retinoscope.core.folders import safe_name
from retinoscope.core.probe import Probe, Watcher
from retinoscope.core.result import Result
from retinoscope.core.specification import short_names, split_label
from retinoscope.core.subject import Subject
from retinoscope.core.wording import assumed_words
from retinoscope.report.build import build_report
from retinoscope.run.engines import choose_engine
from retinoscope.run.plan import Plan
from retinoscope.run.progress import Reporter, watched
from retinoscope.run.run import Run
from retinoscope.run.status import Asked, AskedModel, write_asked
from retinoscope.run.subject import load_subject
from retinoscope.workflows.forecast import rounds, say_forecast
from retinoscope.workflows.presets import chosen


@dataclass
class Examination:
    """The results of an examination, and its folder."""

    folder: Path
    report: Path | None = None
    results: dict[str, dict[str, Result | NotApplicable]] = field(default_factory=dict)
    """Results by model, then by probe; ``NotApplicable`` with its reason for probes that do not
    apply."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Models that could not be examined, and probes that failed (``MODEL, PROBE``), with the
    reason."""

    @property
    def measured(self) -> int:
        """The number of results."""
        found = [one for answers in self.results.values() for one in answers.values()]
        return sum(isinstance(one, Result) for one in found)

    def __str__(self) -> str:
        lines = [f"{model}: {', '.join(found)}" for model, found in self.results.items()]
        lines += [f"{model} could not be examined: {why}" for model, why in self.failures]
        return "\n".join([*lines, f"report: {self.report}"])


def examine(
    models: str | Subject | Sequence[str | Subject],
    data: Any = "cues",
    *,
    preset: str | None = None,
    probes: Sequence[str | Probe | Watcher] | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    ray: str | None = None,
    fresh: bool = False,
    reporter: Reporter | None = None,
    command: Sequence[str] = (),
    **settings: Any,
) -> Examination:
    """Measure models and write the report; results already in the folder are reused.

    Args:
        models: Names known to :func:`retinoscope.load_model`, optionally with a label
            (``mine=resnet50``), or subjects.
        data: The images to use; see :func:`retinoscope.load_subject`.
        preset: ``quick`` (the default), ``standard`` or ``paper``: selects the probes and the
            number of images; see :mod:`retinoscope.workflows.presets`.
        probes: Names, optionally with settings (``hessian:k=10``, ``./file.py:Class:k=3``), or
            probes. They replace the probes of the preset, or are added to them if ``preset`` is
            given.
        out: The run folder. Default: a folder in ``runs/``, named after models and data.
        jobs: Number of processes on this machine.
        ray: Address of a Ray cluster to use instead.
        fresh: Start over: remove existing results from the folder.
        reporter: Receives progress messages; by default prints to the terminal.
        command: The words of the command line, if any; quoted in the report and in messages.
        settings: Passed on to :func:`retinoscope.load_subject`: ``images``, ``pretrained``, ….
    """
    asked = [models] if isinstance(models, str | Subject) else list(models)
    if not asked:
        raise RetinoscopeError(
            "No model was given. Name at least one: retinoscope examine resnet50"
        )
    _check_labels([model for model in asked if isinstance(model, str)])
    questions, base = chosen(preset, probes)
    if base is not None:
        settings = {"images": base.images} | settings
    folder = Path(out) if out else default_folder([_name(m) for m in asked], data)
    engine, reporter = choose_engine(jobs, ray), reporter or watched()
    new = not folder.exists()
    run = Run(folder, fresh=fresh, engine=engine, reporter=reporter)
    shown = _shown(asked)

    def load(model: str | Subject) -> Subject:
        return _subject(model, data, reporter, settings | shown.get(_name(model), {}))

    course = _Course(run, [AskedModel(_name(m)) for m in asked], command, Examination(folder))
    try:
        course.write()
        course.load(asked, load, questions)
        course.measure(base.name if base else None)
    except KeyboardInterrupt:
        course.write()
        raise
    except RetinoscopeError:
        if new and not course.plans:  # leave nothing if a name was mistyped
            run.files.close()
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        run.files.close()
    return course.done


class _Course:
    """A running examination, which keeps the report up to date."""

    def __init__(
        self, run: Run, models: list[AskedModel], command: Sequence[str], done: Examination
    ) -> None:
        self.run, self.models, self.command, self.done = run, models, command, done
        self.plans: list[Plan] = []
        self.started = time.monotonic()

    def write(self) -> None:
        """Write the report again with the current results."""
        folder = self.done.folder
        with self.run.files.writing():
            write_asked(folder, Asked(tuple(self.models), shlex.join(self.command)))
            self.done.report = build_report([folder], folder / "report.html", empty=True)

    def load(self, asked: Sequence[str | Subject], subject_of: Any, questions: Any) -> None:
        """Load all models and plan what to measure; models that fail to load are recorded."""
        for index, model in enumerate(asked):
            try:
                subject = subject_of(model)
                called = self.run.files.subject_folder(subject).name
                self.models[index] = AskedModel(subject.name, called)
                plan = self.run.plan(questions, subject)
                self.plans.append(plan)
                self._collect(plan)
            except RetinoscopeError as error:
                self.models[index] = replace(self.models[index], reason=str(error))
                if len(asked) == 1:
                    self.write()
                    raise
                self.done.failures.append((_name(model), str(error)))
                self.run.reporter.say(f"{_name(model)} could not be examined: {error}")
        if not self.plans:
            raise RetinoscopeError(
                f"None of the {len(asked)} models could be examined. The first: "
                f"{self.done.failures[0][1]}"
            )

    def measure(self, preset: str | None) -> None:
        """Measure what is missing, the fastest probes of all models first."""
        spent = time.monotonic() - self.started
        say_forecast(self.plans, spent, self.run.reporter.say, self.command, preset)
        self.write()
        for plan, some in rounds(self.plans):
            self.run.carry_out(plan, some)
            self._collect(plan)
            self.write()
        for plan in self.plans:
            self.done.failures += [
                (f"{plan.subject.name}, {name}", str(error)) for name, error in plan.failed.items()
            ]

    def _collect(self, plan: Plan) -> None:
        self.done.results[plan.subject.name] = {
            name: answer
            for name, answer in plan.by_name().items()
            if isinstance(answer, Result | NotApplicable)
        }


def _subject(
    model: str | Subject, data: Any, reporter: Reporter, settings: dict[str, Any]
) -> Subject:
    if isinstance(model, Subject):
        return model
    reporter.begin(f"reading the anatomy of {_name(model)}", 1)
    try:
        subject = load_subject(model, data, **settings)
    finally:
        reporter.end()
    if subject.assumed:
        reporter.say(assumed_words(subject.name, subject.assumed))
    return subject


def _shown(models: Sequence[str | Subject]) -> dict[str, dict[str, str]]:
    """Short names for models that have no label, by their names."""
    named = [model for model in models if isinstance(model, str) and split_label(model)[0] is None]
    return {name: {"name": short} for name, short in zip(named, short_names(named), strict=True)}


def default_folder(models: Sequence[str], data: Any) -> Path:
    """The run folder to use if none is given; the same for the same names."""
    shown = data if isinstance(data, str) else type(data).__name__
    return Path("runs") / f"{safe_name('+'.join(models))}-{safe_name(shown)}"


def _check_labels(models: Sequence[str]) -> None:
    """Raise if two models have the same label."""
    labels = [label for model in models if (label := split_label(model)[0]) is not None]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise WrongInput(
            f"The label {twice[0]!r} is given to more than one model. Give each its own: "
            f"{twice[0]}-1=NAME {twice[0]}-2=NAME"
        )


def _name(model: str | Subject) -> str:
    """The display name of a model: its label, or its name."""
    if isinstance(model, Subject):
        return model.name
    label, name = split_label(model)
    return label or name
