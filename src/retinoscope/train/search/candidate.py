"""Build, train and score one candidate of a search with one seed, here or in other processes.

::

    built-seed-0.safetensors     the network before training, and how to build it
    seed-0/                      its training
    seed-0/scores.json           its scores; if this file exists, the seed is done
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import writing
from retinoscope.core.history import MARK
from retinoscope.models.device import find_device
from retinoscope.train.images import find_images
from retinoscope.train.listener import Started
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.score import score
from retinoscope.train.search.base import Base, Plan
from retinoscope.train.student import Student, load_student, shape_of
from retinoscope.train.train import train_model

Tell = Callable[..., None]
"""Takes the name of a listener's method, such as ``epoch`` or ``say``, and its arguments."""
Perform = Callable[["Sequence[Task]", Tell], list[dict[str, Any]]]

SCORES = "scores.json"
_GLANCE = 0.2
"""Seconds between two checks for messages from other processes."""


@dataclass(frozen=True)
class Task:
    """A plan to build, train and score with one seed."""

    base: Base
    plan: Plan
    recipe: Recipe
    """With the seed, and without initial weights."""
    folder: Path
    grow: bool = False
    name: str = ""
    root: str | None = None
    workers: int = 0
    device: str | None = None

    @property
    def scores(self) -> dict[str, Any] | None:
        """The saved scores; None if the task is not done."""
        file = self.folder / SCORES
        return json.loads(file.read_bytes()) if file.is_file() else None


def perform(task: Task, tell: Tell) -> dict[str, Any]:
    """The scores of a plan with one seed; resumes if an earlier call was interrupted."""
    if (found := task.scores) is not None:
        return found
    folder, seed = task.folder, task.recipe.seed
    first = folder.parent / f"built-{folder.name}.safetensors"
    if not first.is_file():
        built = task.base.built(task.plan, task.grow, seed)
        with writing(folder):
            built.save(first)
    # As weights of the base, not as a model name: a file must not decide which code runs.
    recipe = replace(task.recipe, weights=str(first.absolute()))
    _follow(folder / MARK, recipe)
    done = train_model(
        recipe, folder, name=task.name, root=task.root, workers=task.workers, device=task.device,
        listeners=[_Relay(seed, tell)],
    )  # fmt: skip
    assert done.end is not None  # without ``until`` it runs to the end
    last = done.rows[-1]
    held_out = {key: last[key] for key in ("accuracy", "nll", "ece", "images")}
    scores = {"held_out": held_out} | _tested(replace(recipe, weights=str(done.end)), task, tell)
    with writing(folder):
        write_atomically(folder / SCORES, json.dumps(scores, indent=1) + "\n")
    return scores


def _tested(recipe: Recipe, task: Task, tell: Tell) -> dict[str, Any]:
    """The scores on the whole test split, None without one, and the number of parameters."""

    def say(text: str) -> None:
        tell("say", text)

    loaded, _ = load_student(recipe)
    team = Processes(device=find_device(task.device))
    student = Student(loaded).to(team.device)
    whole = replace(recipe, holdout=0.0, scored=0)
    _, images = find_images(whole, loaded.preprocessing, shape_of(student), task.root)
    found = None
    if images is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)  # some networks are random in eval mode
            found = score(student, images.in_memory(say), team, say)
    return {"test": found, "parameters": sum(p.numel() for p in loaded.model.parameters())}


def _follow(mark: Path, recipe: Recipe) -> None:
    """Update the path of the initial weights, if they were moved together with the training."""
    if not mark.is_file():
        return
    found = json.loads(mark.read_bytes())
    moved = found.get("recipe", {}) | {"weights": recipe.weights}
    if moved == recipe.to_plain() != found["recipe"]:
        with writing(mark.parent):
            text = json.dumps(found | {"recipe": moved}, indent=1, ensure_ascii=False)
            write_atomically(mark, text + "\n")


class _Relay:
    """A listener that passes on the events of a training, with its seed."""

    def __init__(self, seed: int, tell: Tell) -> None:
        self._seed, self._tell, self._before = seed, tell, 0

    def begin(self, started: Started) -> None:
        self._before = started.done

    def step(self, step: int) -> None:
        pass

    def epoch(self, row: Mapping[str, Any]) -> None:
        self._tell("epoch", self._seed, row, row["step"] <= self._before)

    def say(self, text: str) -> None:
        self._tell("say", f"seed {self._seed}: {text}")

    def end(self) -> None:
        pass


@contextmanager
def trainers(jobs: int) -> Iterator[Perform]:
    """A function that performs tasks: one by one here, or several at once in other processes."""
    if jobs == 1:
        yield lambda tasks, tell: [perform(task, tell) for task in tasks]
        return
    context = multiprocessing.get_context("spawn")
    outbox = context.SimpleQueue()
    # Nothing is ever sent: when the writing end closes, the processes exit.
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, initializer=_settle, initargs=(outbox, reader))
    try:
        yield lambda tasks, tell: _performed(pool, tasks, outbox, tell)
    except BrokenProcessPool as error:
        raise RetinoscopeError(
            "A process that trains died, perhaps because memory ran out. What was finished is "
            "kept: run the same command again, with fewer --jobs (in Python jobs=…). "
            "(A script of your own that asks for jobs must do so under `if __name__ == "
            "'__main__':`.)"
        ) from error
    finally:
        writer.close()
        pool.shutdown(cancel_futures=True)
        reader.close()


def _performed(
    pool: ProcessPoolExecutor, tasks: Sequence[Task], outbox: SimpleQueue, tell: Tell
) -> list[dict[str, Any]]:
    # Finished tasks need no process.
    asked = {task: pool.submit(_perform_there, task) for task in tasks if task.scores is None}
    waiting = set(asked.values())
    while waiting:
        done, waiting = wait(waiting, _GLANCE, FIRST_EXCEPTION)
        while not outbox.empty():
            tell(*outbox.get())
        for one in done:
            one.result()
    return [asked[task].result() if task in asked else perform(task, tell) for task in tasks]


_there: list[SimpleQueue] = []
"""In a process that trains: the queue for its messages."""


def _settle(outbox: SimpleQueue, parent: Connection) -> None:
    torch.set_num_threads(1)
    _there.append(outbox)
    Thread(target=_go_with, args=(parent,), daemon=True).start()


def _go_with(parent: Connection) -> None:
    """Exit as soon as the parent process is gone; the training can resume from disk."""
    try:
        parent.recv()
    except (EOFError, OSError):
        os._exit(1)


def _perform_there(task: Task) -> dict[str, Any]:
    return perform(task, lambda *what: _there[0].put(what))
