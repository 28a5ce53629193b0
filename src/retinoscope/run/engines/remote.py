"""What a worker in another process does: rebuild the subject once, keep it, perform tasks."""

from __future__ import annotations

from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.subject import Subject
from retinoscope.run.subject import SubjectSpecification, rebuild
from retinoscope.run.task import Outcome, Task, perform


class NotRebuildable(RetinoscopeError):
    """A subject made from live objects cannot be sent to another process."""


def specification_of(subject: Subject, asked: str) -> SubjectSpecification:
    """From what another process rebuilds the subject."""
    if not isinstance(subject.specification, SubjectSpecification):
        raise NotRebuildable(
            f"{asked} needs a subject that other processes can build from its name, but "
            f"{subject.name} was made from live objects. Write a function that returns the model "
            "and name it as path/file.py:function, and name the data; or work in one process."
        )
    return subject.specification


def work(specification: SubjectSpecification, fingerprint: str, task: Task) -> Outcome:
    """Perform a task on the subject of a specification."""
    subject = rebuild(specification)
    if subject.fingerprint != fingerprint:
        raise NotRebuildable(
            f"{subject.name} came out differently in another process: does its function draw "
            "random weights without a seed, or read a file that has changed?"
        )
    return perform(task, subject)
