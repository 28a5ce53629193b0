"""Tasks one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retinoscope.core.subject import Subject
from retinoscope.run.task import Outcome, Task, perform


class Here:
    """No other process; nothing to set up."""

    def run(self, subject: Subject, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Every task once, in order."""
        for task in tasks:
            yield task, perform(task, subject)
