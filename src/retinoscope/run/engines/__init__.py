"""Engines, which execute tasks: in this process, in several processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from retinoscope.core.errors import WrongInput
from retinoscope.core.subject import Subject
from retinoscope.run.task import Outcome, Task


class Engine(Protocol):
    """Executes tasks in any order and yields the outcome of each as soon as it is available."""

    def run(self, subject: Subject, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Execute every task once; yields each task with its outcome."""
        ...


def choose_engine(jobs: int = 1, ray: str | None = None) -> Engine:
    """The engine selected by the options ``jobs`` and ``ray``."""
    if jobs < 1:
        raise WrongInput(f"--jobs is the number of processes and must be at least 1; got {jobs}.")
    if ray is not None:
        from retinoscope.run.engines.ray import OnRay

        return OnRay(ray)
    if jobs > 1:
        from retinoscope.run.engines.processes import InProcesses

        return InProcesses(jobs)
    from retinoscope.run.engines.local import Here

    return Here()
