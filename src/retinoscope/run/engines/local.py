"""Executes tasks one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retinoscope.core.subject import Subject
from retinoscope.run.task import Outcome, Task, perform


class Here:
    """The engine for a single process; it needs no setup."""

    def run(self, subject: Subject, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Execute every task once, in order."""
        for task in tasks:
            yield task, perform(task, subject)
