"""The whole line in one call: names in, a report out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinoscope.core.errors import NotApplicable, RetinoscopeError, WrongInput
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import safe_name
from retinoscope.core.probe import Probe, Watcher
from retinoscope.core.result import Result
from retinoscope.core.specification import split_label
from retinoscope.core.subject import Subject
from retinoscope.probes import list_probes, parse_probe
from retinoscope.report.build import build_report
from retinoscope.run.engines import choose_engine
from retinoscope.run.progress import Reporter, watched
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject


@dataclass
class Examination:
    """What an examination gave, and where it lies."""

    folder: Path
    report: Path | None = None
    results: dict[str, dict[str, Result | NotApplicable]] = field(default_factory=dict)
    """By model, then by probe; a probe that was not applicable says why."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Models that could not be examined, and why."""

    def __str__(self) -> str:
        lines = [f"{model}: {', '.join(found)}" for model, found in self.results.items()]
        lines += [f"{model} could not be examined: {why}" for model, why in self.failures]
        return "\n".join([*lines, f"report: {self.report}"])


def examine(
    models: str | Subject | Sequence[str | Subject],
    data: Any = "cues",
    *,
    probes: Sequence[str | Probe | Watcher] | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    ray: str | None = None,
    fresh: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Examination:
    """Measure models and write the report; what the folder holds already is not done again.

    Args:
        models: Names that :func:`retinoscope.load_model` knows, perhaps with a label in front
            (``mine=resnet50``), or subjects.
        data: What to show them; see :func:`retinoscope.load_subject`.
        probes: Names, perhaps with settings (``hessian:k=10``, ``./file.py:Class:k=3``), or probes;
            all that exist if not given.
        out: The run folder; named after models and data under ``runs/`` if not given.
        jobs: Processes on this machine.
        ray: Address of a Ray cluster to use instead.
        fresh: Start over: remove what the folder holds.
        reporter: Is told how far it is; by default writes to the terminal.
        settings: Passed on to :func:`retinoscope.load_subject`: ``images``, ``pretrained``, ….
    """
    asked = [models] if isinstance(models, str | Subject) else list(models)
    if not asked:
        raise RetinoscopeError("No model was named. Name one: retinoscope examine resnet50")
    _check_labels([model for model in asked if isinstance(model, str)])
    questions = [parse_probe(p) if isinstance(p, str) else p for p in probes or list_probes()]
    folder = Path(out) if out else default_folder([_name(m) for m in asked], data)
    engine, reporter = choose_engine(jobs, ray), reporter or watched()
    run = Run(folder, fresh=fresh, engine=engine, reporter=reporter)
    done = Examination(folder)
    order: list[str] = []
    try:
        for model in asked:
            try:
                subject = _subject(model, data, reporter, settings)
                order.append(run.files.subject_folder(subject).name)
                done.results[subject.name] = run.measure_all(questions, subject)
            except RetinoscopeError as error:
                if len(asked) == 1:
                    raise
                done.failures.append((_name(model), str(error)))
                reporter.say(f"{_name(model)} could not be examined: {error}")
        if not done.results:
            raise RetinoscopeError(
                f"None of the {len(asked)} models could be examined. The first: "
                f"{done.failures[0][1]}"
            )
        with run.files.writing():
            write_atomically(folder / "order.json", json.dumps(order) + "\n")
            done.report = build_report([folder], folder / "report.html", failures=done.failures)
    finally:
        run.files.close()
    return done


def _subject(
    model: str | Subject, data: Any, reporter: Reporter, settings: dict[str, Any]
) -> Subject:
    if isinstance(model, Subject):
        return model
    reporter.begin(f"taking {_name(model)} apart", 1)
    try:
        return load_subject(model, data, **settings)
    finally:
        reporter.end()


def default_folder(models: Sequence[str], data: Any) -> Path:
    """Where a run goes that nobody has named a folder for; the same for the same names."""
    shown = data if isinstance(data, str) else type(data).__name__
    return Path("runs") / f"{safe_name('+'.join(models))}-{safe_name(shown)}"


def _check_labels(models: Sequence[str]) -> None:
    """Refuse a label that two models have."""
    labels = [label for model in models if (label := split_label(model)[0]) is not None]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise WrongInput(
            f"The label {twice[0]!r} is given to more than one model. Give each its own: "
            f"{twice[0]}-1=NAME {twice[0]}-2=NAME"
        )


def _name(model: str | Subject) -> str:
    """What a model is called in the report: its label, or its name."""
    if isinstance(model, Subject):
        return model.name
    label, name = split_label(model)
    return label or name
