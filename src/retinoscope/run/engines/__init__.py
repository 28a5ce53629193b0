"""Where tasks are done: in this process, in several, or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from retinoscope.core.errors import WrongInput
from retinoscope.core.subject import Subject
from retinoscope.run.task import Outcome, Task


class Engine(Protocol):
    """Does tasks in any order and hands back what each gave, as soon as it is there."""

    def run(self, subject: Subject, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Every task once, with its outcome."""
        ...


def choose_engine(jobs: int = 1, ray: str | None = None) -> Engine:
    """The engine that the options ask for."""
    if jobs < 1:
        raise WrongInput(f"--jobs counts processes, so it is 1 or more; got {jobs}.")
    if ray is not None:
        from retinoscope.run.engines.ray import OnRay

        return OnRay(ray)
    if jobs > 1:
        from retinoscope.run.engines.processes import InProcesses

        return InProcesses(jobs)
    from retinoscope.run.engines.local import Here

    return Here()
