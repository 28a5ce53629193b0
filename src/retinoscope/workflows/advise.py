"""Advises where to put attention in a CNN: the build-up rule, with the measured variance.

Park & Kim (2022, arXiv:2202.06709) find that the variance of feature maps accumulates through a
stage and peaks at its end, that attention lowers it there, and that attention should be added from
the end of the network: alternately in the last stage, then at the end of each earlier stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import NotApplicable, WrongInput
from retinoscope.core.result import Result
from retinoscope.core.unit import Kind
from retinoscope.core.wording import assumed_words
from retinoscope.probes.variance import Variance, VarianceResult
from retinoscope.run.run import measure
from retinoscope.run.subject import load_subject
from retinoscope.surgery import write_surgery
from retinoscope.surgery.build_up import BuildUp, slots


@dataclass(frozen=True)
class StageAdvice:
    """The measured variance of one stage, and the advice that follows from it."""

    stage: int
    units: int
    first: float
    """Variance after the first unit of the stage."""
    last: float
    """Variance after its last unit."""
    peak: str
    """The unit after which the variance is highest."""
    room: int
    """The number of attention units that fit."""
    msas: int
    reason: str


@dataclass(frozen=True)
class Advice:
    """A plan for one model, with reasons."""

    model: str
    stages: tuple[StageAdvice, ...]
    surgery: BuildUp | None
    """None if nothing should, or can, be replaced."""
    trained: bool | None
    variance: VarianceResult

    @property
    def written(self) -> str | None:
        """The surgery in the syntax of the command line."""
        return None if self.surgery is None else write_surgery(self.surgery)


def advise(model: str, data: Any = "cues", *, msas: int = 4, **settings: Any) -> Advice:
    """Measure a model's variance after every unit and propose where attention should go.

    Args:
        model: A name known to :func:`retinoscope.load_model`.
        data: The images to use; see :func:`retinoscope.load_subject`.
        msas: Maximum number of attention units; the paper uses 4 for CIFAR, 6 for ImageNet.
        settings: Passed on to :func:`retinoscope.load_subject`, and ``reporter`` to the run.
    """
    if msas < 1:
        raise WrongInput(
            f"--msas is the number of attention units to place and must be at least 1; got {msas}."
        )
    run: Mapping[str, Any] = {"reporter": settings.pop("reporter", None)}
    subject = load_subject(model, data, **settings)
    if run["reporter"] is not None and subject.assumed:
        run["reporter"].say(assumed_words(subject.name, subject.assumed))
    found: Result = measure(Variance(), subject, **run)
    return plan(subject.anatomy, cast(VarianceResult, found), msas, subject.protocol.get("trained"))


def plan(anatomy: Anatomy, variance: VarianceResult, msas: int, trained: bool | None) -> Advice:
    """Apply the build-up rule to the measured variance."""
    seen = [_look(anatomy, variance, stage) for stage in anatomy.stages]
    last = max((view.stage for view in seen if view.peaks), default=0)
    room = {
        view.stage: len(slots(anatomy, view.stage, grow=False))
        for view in seen
        if view.peaks and not (view.stage == anatomy.stages[0] and len(anatomy.stages) > 2)
    }
    if last in room:
        room[last] = max(room[last], len(slots(anatomy, last, grow=True)))
    placed = _place(room, msas)
    surgery = None
    if any(placed.values()):
        per_stage = tuple(placed.get(stage, 0) for stage in anatomy.stages)
        grow = any(n > len(slots(anatomy, stage)) for stage, n in placed.items())
        surgery = BuildUp(per_stage, grow=grow)
    stages = tuple(
        StageAdvice(
            view.stage, view.units, view.first, view.last, view.peak,
            room.get(view.stage, len(slots(anatomy, view.stage))), placed.get(view.stage, 0),
            _reason(view, view.stage in room, room.get(view.stage, 0), placed.get(view.stage, 0)),
        )
        for view in seen
    )  # fmt: skip
    return Advice(anatomy.model, stages, surgery, trained, variance)


@dataclass(frozen=True)
class _View:
    stage: int
    units: int
    first: float
    last: float
    peak: str
    convolutions: bool
    peaks: bool
    """Whether the variance rises through the stage."""


def _look(anatomy: Anatomy, variance: VarianceResult, stage: int) -> _View:
    level = dict(zip(variance.units, variance.variance.tolist(), strict=True))
    names = [unit.name for unit in anatomy.where(stage=stage) if unit.name in level]
    if not names:
        raise NotApplicable(f"no unit of stage {stage} could be measured")
    first, last = level[names[0]], level[names[-1]]
    rises = last > first if len(names) > 1 else True
    convolutions = bool(anatomy.where(kind=Kind.CONV, stage=stage).units)
    peak = max(names, key=level.__getitem__)
    return _View(stage, len(names), first, last, peak, convolutions, rises)


def _place(room: Mapping[int, int], msas: int) -> dict[int, int]:
    """Fill the last stage, then one at the end of each earlier stage, then the remaining units."""
    placed = dict.fromkeys(room, 0)
    backwards = sorted(room, reverse=True)
    in_turn = [
        *((stage, room[stage]) for stage in backwards[:1]),
        *((stage, min(1, room[stage])) for stage in backwards),
        *((stage, room[stage]) for stage in backwards),
    ]
    for stage, wanted in in_turn:
        placed[stage] += min(max(0, wanted - placed[stage]), msas - sum(placed.values()))
    return placed


def _reason(view: _View, considered: bool, room: int, msas: int) -> str:
    if not view.convolutions:
        return "it has no convolutional unit to replace"
    if not view.peaks:
        return "its variance does not rise to its end: no peak for attention to lower"
    if not considered:
        return "it is the first stage, where attention cost accuracy in the paper (fig. 12a)"
    if not room:
        return "no unit in it preserves the shape of its input, so none can be replaced"
    if not msas:
        return "its variance rises to its end, but the number of attention units is used up"
    return f"its variance rises to its end: {msas} attention units out of {room} that fit"
