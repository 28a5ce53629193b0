"""The code of a worker in another process: rebuild the subject once, keep it, perform tasks."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from retinoscope.core.catalogue import load_file, source_of
from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.subject import Subject
from retinoscope.run.specification import SubjectSpecification
from retinoscope.run.subject import Named, rebuild
from retinoscope.run.task import Outcome, Task, perform


class NotRebuildable(RetinoscopeError):
    """Raised when a subject made from live objects would have to be sent to another process."""


def specification_of(subject: Subject, asked: str) -> SubjectSpecification:
    """The specification from which another process can rebuild the subject."""
    if not isinstance(subject.origin, Named):
        raise NotRebuildable(
            f"{asked} needs a subject that other processes can build from its name, but "
            f"{subject.name} was made from live objects. Write a function that returns the model, "
            "pass it as path/file.py:function and pass the data by name; or use a single process."
        )
    return subject.origin.specification


@dataclass(frozen=True)
class Order:
    """The message to a worker: how to rebuild the subject, its expected hash, and the task."""

    specification: SubjectSpecification
    fingerprint: str
    data: str
    others: tuple[tuple[str, str], ...]
    """Further subjects, each with its expected hash."""
    files: tuple[str, ...]
    """The user's files that define probes; they are imported before the task is unpickled."""
    task: bytes


def order(subject: Subject, task: Task, asked: str) -> Order:
    """Package a task for another process."""
    needs, questions = task.work.needs, task.work.questions
    files = dict.fromkeys(str(p) for q in questions if (p := source_of(type(q))) is not None)
    return Order(
        specification_of(subject, asked),
        subject.fingerprint,
        subject.split(needs).fingerprint,
        tuple((name, subject.another(name).fingerprint) for name in needs.others),
        tuple(files),
        pickle.dumps(task),
    )


def work(order: Order) -> Outcome:
    """Perform a task on the subject that its specification describes."""
    with suppress(OSError):  # on another machine the folder may not exist
        os.chdir(order.specification.folder)
    subject = _kept(order.specification)
    own = (subject, order.fingerprint)
    others = ((subject.another(name), expected) for name, expected in order.others)
    for one, expected in (own, *others):
        if one.fingerprint == expected:
            continue
        raise NotRebuildable(
            f"{one.name} is different when it is built in another process: does its function use "
            "random weights without a seed, or read a file that has changed?"
        )
    for path in order.files:
        load_file(Path(path))
    task: Task = pickle.loads(order.task)  # written by our own process a moment ago
    if subject.split(task.work.needs).fingerprint != order.data:
        raise NotRebuildable(
            f"The data {order.specification.data} are different in another process or on another "
            "machine. Have the files changed?"
        )
    return perform(task, subject)


@lru_cache(maxsize=2)
def _kept(specification: SubjectSpecification) -> Subject:
    """The subject, cached: a worker needs the same one for task after task."""
    return rebuild(specification)
