"""The build-up search: replace convolutions by attention as long as accuracy rises.

Park & Kim (2022, arXiv:2202.06709, section 4.1 and fig. 12a): starting at the end of a CNN, units
are replaced by attention one by one; if one more does not help, the search continues at the end of
the previous stage. Plans are compared on held-out training images, not on the test split.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from retinoscope.core.errors import WrongInput
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import writing
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import WrongSetting
from retinoscope.train.recipe import Recipe
from retinoscope.train.search.base import Plan, find_base, find_room
from retinoscope.train.search.candidate import Perform, Task, Tell, trainers
from retinoscope.train.search.folder import STEM, WINNER, claimed, mark, place

_HELD_OUT = 0.1
"""Share of the training images held out for selection, if the recipe holds out none."""


class Tried(NamedTuple):
    """A plan, its score, and whether it was better than all before."""

    plan: Plan
    score: float
    kept: bool


def walk(
    room: Sequence[int], score: Callable[[Plan], float], most: int | None = None
) -> Iterator[Tried]:
    """The plans that the rule tries, in order; the first is the unchanged model.

    Args:
        room: How many attention units fit in each stage.
        score: Returns the score of a plan; higher is better.
        most: Maximum number of attention units.

    Example:
        >>> [tried.plan for tried in walk((1, 2), lambda plan: plan[1])]
        [(0, 0), (0, 1), (0, 2), (1, 2)]
    """
    best: Plan = (0,) * len(room)
    highest = score(best)
    yield Tried(best, highest, True)
    for stage in reversed(range(len(room))):
        while best[stage] < room[stage] and (most is None or sum(best) < most):
            plan = (*best[:stage], best[stage] + 1, *best[stage + 1 :])
            found = score(plan)
            yield Tried(plan, found, found > highest)
            if not found > highest:
                break
            best, highest = plan, found


@answer
class Search(Result):
    """``held_out[c, s]`` and ``test[c, s]``: accuracy of candidate c with seed s.

    Candidates are in the order in which they were tried. Each kept candidate has one attention unit
    more than the one kept before. Missing values are NaN: a deviation over one seed, or test
    accuracy without a test split. The winner was selected on the held-out images, so its accuracy
    on them is biased upwards; its accuracy on the test split is not.
    """

    probe: ClassVar[str] = "search"
    schema: ClassVar[int] = 1

    plans: tuple[Plan, ...]
    """Number of attention units in each stage, for each candidate."""
    seeds: tuple[int, ...]
    winner: Plan
    winner_seed: int
    """The seed with which the winner is best on held-out images."""
    msas: np.ndarray = axes("candidate", unit="attention units", figure=False)
    kept: np.ndarray = axes("candidate", figure=False)
    parameters: np.ndarray = axes("candidate", unit="parameters", figure=False)
    held_out: np.ndarray = axes("candidate", "seed", unit="accuracy", figure=False)
    test: np.ndarray = axes("candidate", "seed", unit="accuracy", figure=False)
    held_out_mean: np.ndarray = axes(
        "candidate", unit="accuracy", x="msas", error="held_out_deviation",
        title="Accuracy on held-out training images, which chose",
    )  # fmt: skip
    held_out_deviation: np.ndarray = axes("candidate", unit="accuracy", figure=False)
    test_mean: np.ndarray = axes(
        "candidate", unit="accuracy", x="msas", error="test_deviation",
        title="Accuracy on the test split, which chose nothing",
    )  # fmt: skip
    test_deviation: np.ndarray = axes("candidate", unit="accuracy", figure=False)


class SearchListener(Protocol):
    """Is notified of the progress of a search."""

    def begin(self, at_most: int, epochs: int) -> None:
        """A search begins with at most this many candidates, of this many epochs over all seeds."""
        ...

    def candidate(self, number: int, plan: Plan, done: int) -> None:
        """A candidate begins, counted from 1; ``done`` epochs belong to seeds that are finished."""
        ...

    def epoch(self, seed: int, row: Mapping[str, Any], before: bool) -> None:
        """A row of a training's log; ``before`` if it is from an earlier call."""
        ...

    def scored(self, tried: Tried) -> None:
        """A candidate is finished."""
        ...

    def say(self, text: str) -> None:
        """A message for the user."""
        ...


def search(
    model: str,
    recipe: Recipe,
    out: Path | str,
    *,
    seeds: int = 3,
    most: int | None = None,
    grow: bool = False,
    name: str = "",
    root: str | None = None,
    workers: int = 0,
    device: str | None = None,
    jobs: int = 1,
    listener: SearchListener | None = None,
) -> Search:
    """Find by training where attention helps in a CNN; resumes an interrupted search.

    Every candidate starts from random weights and is trained with several seeds. It is kept if its
    mean accuracy after the last epoch is higher than that of all candidates before. Accuracy is
    measured on held-out training images (a tenth of them if ``recipe.holdout`` is 0), because a
    test split that selects the winner cannot evaluate it. Test accuracy on the whole test split is
    reported as well.

    Args:
        model: The CNN, by a name that ``load_model`` knows; its own weights are not used.
        recipe: How to train each candidate; its model is not used, its seed is the first seed.
        out: Output folder; the folder of another search is refused.
        seeds: Number of trainings per candidate.
        most: Maximum number of attention units. Default: as many as fit.
        grow: Add units to stages where alternation leaves no room for the last one.
        name: Name of the recipe.
        root: Folder to look for files in. Default: RETINOSCOPE_DATA.
        workers: Number of processes that read images, per training.
        device: Device to train on. Default: the best available.
        jobs: Number of seeds trained at the same time, each in a process with one thread. With
            another number of threads, results may be rounded differently.
        listener: Is notified of the progress.
    """
    recipe = _fitting(recipe, seeds, most, jobs)
    asked = {
        "model": model, "recipe": recipe.to_plain() | {"model": model}, "seeds": seeds,
        "most": most, "grow": grow,
    }  # fmt: skip
    folder, tell = Path(out), _telling(listener)
    more = {"grow": grow, "name": name, "root": root, "workers": workers, "device": device}
    with claimed(folder, asked), trainers(min(jobs, seeds)) as train:
        base, recipe = find_base(model, recipe, root, partial(tell, "say"))
        room = find_room(base, grow, partial(tell, "say"))
        # Only now: a model or a recipe that does not fit must not claim the folder.
        mark(folder, asked)
        task = Task(base, (0,) * len(room), recipe, folder, **more)
        found = _Searching(task, seeds, train, tell).run(room, most, asked)
        with writing(folder):
            _write(folder, found)
    return found


class _Searching:
    """A search in progress."""

    def __init__(self, task: Task, seeds: int, train: Perform, tell: Tell) -> None:
        self.task, self.train, self.tell = task, train, tell
        self.seeds = range(task.recipe.seed, task.recipe.seed + seeds)
        self.epochs = task.recipe.warmup + task.recipe.epochs
        self.scores: dict[Plan, list[dict[str, Any]]] = {}

    def run(self, room: Plan, most: int | None, asked: Mapping[str, Any]) -> Search:
        """Train and score all candidates, and return the result."""
        # Each stage rejects at most one candidate.
        at_most = min(sum(room), sum(room) if most is None else most + len(room))
        self.tell("begin", 1 + at_most, len(self.seeds) * self.epochs)
        tried = []
        for one in walk(room, self._score, most):
            tried.append(one)
            self.tell("scored", one)
        return self._result(tried, asked)

    def _score(self, plan: Plan) -> float:
        tasks = [
            replace(
                self.task, plan=plan, recipe=replace(self.task.recipe, seed=seed),
                folder=self.task.folder / place(plan, seed),
            )
            for seed in self.seeds
        ]  # fmt: skip
        done = sum(task.scores is not None for task in tasks)
        self.tell("candidate", len(self.scores) + 1, plan, done * self.epochs)
        self.scores[plan] = self.train(tasks, self.tell)
        return fmean(scores["held_out"]["accuracy"] for scores in self.scores[plan])

    def _result(self, tried: Sequence[Tried], asked: Mapping[str, Any]) -> Search:
        scores = [self.scores[one.plan] for one in tried]
        held_out = np.array([[s["held_out"]["accuracy"] for s in row] for row in scores])
        test = np.array([[(s["test"] or {}).get("accuracy", math.nan) for s in row]
                         for row in scores])  # fmt: skip
        winner = max(place for place, one in enumerate(tried) if one.kept)
        one = scores[0][0]
        return Search(
            protocol=dict(asked) | {
                "data": self.task.recipe.data,
                "held out": one["held_out"]["images"],
                "tested on": (one["test"] or {}).get("images", 0),
            },
            plans=tuple(one.plan for one in tried),
            seeds=tuple(self.seeds),
            winner=tried[winner].plan,
            winner_seed=self.seeds[int(held_out[winner].argmax())],
            msas=np.array([sum(one.plan) for one in tried]),
            kept=np.array([one.kept for one in tried]),
            parameters=np.array([row[0]["parameters"] for row in scores]),
            held_out=held_out,
            test=test,
            held_out_mean=np.array([fmean(row) for row in held_out.tolist()]),
            held_out_deviation=np.array([_deviation(row) for row in held_out.tolist()]),
            test_mean=np.array([fmean(row) for row in test.tolist()]),
            test_deviation=np.array([_deviation(row) for row in test.tolist()]),
        )  # fmt: skip


def _fitting(recipe: Recipe, seeds: int, most: int | None, jobs: int) -> Recipe:
    """The recipe with images held out; refuses settings that do not fit a search."""
    for what, value in (("seeds", seeds), ("most", most), ("jobs", jobs)):
        if value is not None and value < 1:
            raise WrongInput(f"A search has {what} of 1 or more; got {value}.")
    if recipe.pretrained or recipe.weights:
        raise WrongSetting(
            "A search compares networks that all begin with random weights, so its recipe has "
            "neither pretrained nor weights."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise WrongInput(
            "A search is one process that trains by several seeds at a time with --jobs (in "
            "Python jobs=…); start it without torchrun."
        )
    return recipe if recipe.holdout else replace(recipe, holdout=_HELD_OUT)


def _write(folder: Path, found: Search) -> None:
    best = folder / place(found.winner, found.winner_seed) / "snapshots" / "end.safetensors"
    write_atomically(folder / WINNER, best.read_bytes())
    found.save(folder, STEM)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else math.nan


def _telling(listener: SearchListener | None) -> Tell:
    """A function that calls a method of the listener, if there is one."""

    def tell(what: str, *about: Any) -> None:
        if listener is not None:
            getattr(listener, what)(*about)

    return tell
