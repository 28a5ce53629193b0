"""The build-up search: convolutions become attention for as long as accuracy rises.

Park & Kim (2022, arXiv:2202.06709, section 4.1 and fig. 12a): from the end of a CNN on, units are
replaced by attention one by one; where one more does not help, the search goes to the end of the
stage before. The test split chooses nothing: plans are compared on held-out training images.
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
"""Share of the training images that choose, where the recipe keeps none back."""


class Tried(NamedTuple):
    """A plan, how well it did, and whether it was better than all before."""

    plan: Plan
    score: float
    kept: bool


def walk(
    room: Sequence[int], score: Callable[[Plan], float], most: int | None = None
) -> Iterator[Tried]:
    """Every plan that the rule tries, in turn; the first is the unchanged model.

    Args:
        room: How many attention units fit in each stage.
        score: How well a plan does; the higher the better.
        most: How many attention units to place at most.

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
    """``held_out[c, s]`` and ``test[c, s]``: accuracy of candidate c by seed s.

    Candidates stand in the order in which they were tried. Each that was kept is the one kept
    before with one more attention unit. A value that does not exist is NaN: a deviation over one
    seed, accuracy where there is no test split. The held-out images have chosen the winner, so its
    accuracy on them is too high by chance; that on the test split is not.
    """

    probe: ClassVar[str] = "search"
    schema: ClassVar[int] = 1

    plans: tuple[Plan, ...]
    """How many attention units each stage of each candidate has."""
    seeds: tuple[int, ...]
    winner: Plan
    winner_seed: int
    """The one of the winner that is best on held-out images."""
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
    """Hears how a search goes."""

    def begin(self, at_most: int, epochs: int) -> None:
        """So many candidates can come, each of so many epochs over all seeds."""
        ...

    def candidate(self, number: int, plan: Plan, done: int) -> None:
        """The next one, counted from 1; so many of its epochs are done by seeds that ended."""
        ...

    def epoch(self, seed: int, row: Mapping[str, Any], before: bool) -> None:
        """A row of a training's log; one from before was there already."""
        ...

    def scored(self, tried: Tried) -> None:
        """A candidate is done."""
        ...

    def say(self, text: str) -> None:
        """Something a person should know."""
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
    """Where attention pays in a CNN, found by training; goes on where an earlier call was stopped.

    Every candidate begins with random weights and is trained by several seeds. It is kept if its
    mean accuracy after the last epoch is higher than that of all before. That is accuracy on
    training images that were held out: a tenth of them where ``recipe.holdout`` is 0, since what
    the test split has chosen it can no longer judge. The test split is scored beside, in full.

    Args:
        model: The CNN, by a name that ``load_model`` knows; its own weights are not used.
        recipe: How to train each candidate; its model is not used, its seed is the first.
        out: The folder; one of another search is refused.
        seeds: Trainings of each candidate.
        most: How many attention units to place at most; as many as fit if not given.
        grow: Add units to stages where alternation leaves no room for the last.
        name: What to call the recipe.
        root: Where data lie; RETINOSCOPE_DATA if not given.
        workers: Processes of each training that read images.
        device: Where to train; the best there is if not given.
        jobs: Seeds that are trained at the same time, each in a process with one thread. Other
            numbers of threads may round otherwise.
        listener: Who is told.
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
        # Not before: a model or a recipe that does not fit must not mark the folder.
        mark(folder, asked)
        task = Task(base, (0,) * len(room), recipe, folder, **more)
        found = _Searching(task, seeds, train, tell).run(room, most, asked)
        with writing(folder):
            _write(folder, found)
    return found


class _Searching:
    """One search while it is under way."""

    def __init__(self, task: Task, seeds: int, train: Perform, tell: Tell) -> None:
        self.task, self.train, self.tell = task, train, tell
        self.seeds = range(task.recipe.seed, task.recipe.seed + seeds)
        self.epochs = task.recipe.warmup + task.recipe.epochs
        self.scores: dict[Plan, list[dict[str, Any]]] = {}

    def run(self, room: Plan, most: int | None, asked: Mapping[str, Any]) -> Search:
        """All candidates, and what comes out."""
        # Each stage refuses one at most.
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
    """The recipe with images held out; refuses what no search can have."""
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
    """What passes a word on to a listener, or to nobody."""

    def tell(what: str, *about: Any) -> None:
        if listener is not None:
            getattr(listener, what)(*about)

    return tell
