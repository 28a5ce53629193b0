"""What is to be measured of one subject: what is answered already, and what remains to be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.result import Result
from retinoscope.core.subject import Subject
from retinoscope.run.estimate import Pass
from retinoscope.run.key import name_of, settings_of
from retinoscope.run.work import Question


@dataclass
class Plan:
    """The probes asked of one subject; see :meth:`retinoscope.run.run.Run.plan`."""

    subject: Subject
    folder: Path
    """Where everything about the subject lies."""
    asked: tuple[Question, ...]
    answers: dict[Question, Result | RetinoscopeError] = field(default_factory=dict)
    """The result of each probe, or why it has none: ``NotApplicable``, or what made it fail."""
    passes: list[Pass] = field(default_factory=list)
    """What remains to be done, and how long it should take."""

    def by_name(self) -> dict[str, Result | RetinoscopeError]:
        """The answers by the names of the probes, in the order in which they were asked for."""
        named: dict[str, Result | RetinoscopeError] = {}
        for probe in self.asked:
            if probe in self.answers:
                name = name_of(probe)
                called = name if name not in named else f"{name} {settings_of(probe)}"
                named[called] = self.answers[probe]
        return named
