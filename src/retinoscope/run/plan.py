"""A plan for one subject: which results exist already, and which work remains."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.result import Result
from retinoscope.core.subject import Subject
from retinoscope.run.estimate import Pass
from retinoscope.run.key import name_of, settings_of
from retinoscope.run.work import Question


@dataclass
class Plan:
    """The requested probes of one subject; see :meth:`retinoscope.run.run.Run.plan`."""

    subject: Subject
    folder: Path
    """The folder with everything about the subject."""
    asked: tuple[Question, ...]
    answers: dict[Question, Result | RetinoscopeError] = field(default_factory=dict)
    """The result of each probe, or the reason why it has none: ``NotApplicable`` or an error."""
    passes: list[Pass] = field(default_factory=list)
    """The remaining work, with the estimated time."""

    @property
    def failed(self) -> dict[str, RetinoscopeError]:
        """The errors of the probes that failed, by name; probes that do not apply have not."""
        return {
            name: answer
            for name, answer in self.by_name().items()
            if isinstance(answer, RetinoscopeError) and not isinstance(answer, NotApplicable)
        }

    def by_name(self) -> dict[str, Result | RetinoscopeError]:
        """The answers by probe name, in the order of the request."""
        named: dict[str, Result | RetinoscopeError] = {}
        for probe in self.asked:
            if probe in self.answers:
                name = name_of(probe)
                called = name if name not in named else f"{name} {settings_of(probe)}"
                named[called] = self.answers[probe]
        return named
