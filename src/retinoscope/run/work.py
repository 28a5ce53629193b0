"""What does the work for a question: a probe for itself, or one pass for several watchers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial, Piece, Preparing, Probe, Watcher
from retinoscope.core.subject import Subject

Question = Probe | Watcher


class Work(Protocol):
    """Something to do with a subject that comes in independent pieces."""

    @property
    def needs(self) -> Needs:
        """What must be there."""
        ...

    @property
    def questions(self) -> tuple[Question, ...]:
        """What it answers."""
        ...

    @property
    def sharing(self) -> Hashable | None:
        """What other work must have in common with it to be joined; None where nothing can be."""
        ...

    @property
    def group(self) -> int | None:
        """Images that must be seen together; joined work has one such number at most."""
        ...

    @property
    def prepares(self) -> bool:
        """Whether something is prepared before all pieces."""
        ...

    @property
    def draws(self) -> bool:
        """Whether it is defined for networks that draw at test time."""
        ...

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The parts of the work."""
        ...

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """What all pieces find in the context."""
        ...

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Do one part, for all questions."""
        ...

    def joined(self, others: Sequence[Any]) -> Work:
        """One for the questions of several of its kind, which have ``sharing`` in common."""
        ...

    def divided(self, partial: Partial) -> Sequence[Partial | NotApplicable]:
        """What :meth:`measure` gave, for each question its own, or why it gave nothing."""
        ...

    def partials(self, kept: Partial) -> Sequence[Partial]:
        """What a piece gives to be combined, from what is kept of it for one question."""
        ...


@dataclass(frozen=True)
class Alone:
    """The work of one probe."""

    probe: Probe
    sharing: None = None
    group: None = None
    draws: bool = False

    @property
    def needs(self) -> Needs:
        """What the probe needs."""
        return self.probe.needs

    @property
    def questions(self) -> tuple[Question, ...]:
        """The probe."""
        return (self.probe,)

    @property
    def prepares(self) -> bool:
        """Whether the probe prepares something."""
        return isinstance(self.probe, Preparing)

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """Those of the probe."""
        return self.probe.pieces(subject)

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """What the probe prepares; nothing for most."""
        return self.probe.prepare(subject, context) if isinstance(self.probe, Preparing) else {}

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """By the probe."""
        return self.probe.measure(subject, piece, context)

    def joined(self, others: Sequence[Any]) -> Alone:
        """Itself: nothing can be joined with it."""
        return self

    def divided(self, partial: Partial) -> Sequence[Partial | NotApplicable]:
        """All of it."""
        return [partial]

    def partials(self, kept: Partial) -> Sequence[Partial]:
        """As it was kept."""
        return [kept]
