"""The work behind a question: one probe on its own, or one pass for several watchers."""

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
    """Work on a subject that is divided into independent pieces."""

    @property
    def needs(self) -> Needs:
        """What the subject must provide."""
        ...

    @property
    def questions(self) -> tuple[Question, ...]:
        """The probes or watchers that it answers."""
        ...

    @property
    def sharing(self) -> Hashable | None:
        """The properties that other work must share to be joined; None if nothing can be joined."""
        ...

    @property
    def group(self) -> int | None:
        """The number of images that must be seen together; the same for all joined work."""
        ...

    @property
    def prepares(self) -> bool:
        """Whether it prepares something before all pieces."""
        ...

    @property
    def draws(self) -> bool:
        """Whether it is defined for networks that are random at test time."""
        ...

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The pieces of the work."""
        ...

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """The data that every piece finds in its context."""
        ...

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Measure one piece, for all questions."""
        ...

    def joined(self, others: Sequence[Any]) -> Work:
        """Join several works of this kind, whose ``sharing`` is equal, into one."""
        ...

    def divided(self, partial: Partial) -> Sequence[Partial | NotApplicable]:
        """Split the output of :meth:`measure` by question; a reason replaces a missing output."""
        ...

    def partials(self, kept: Partial) -> Sequence[Partial]:
        """The partials of one question to combine, from its stored piece."""
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
        """The pieces of the probe."""
        return self.probe.pieces(subject)

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """The output of the probe's ``prepare``; empty for most probes."""
        return self.probe.prepare(subject, context) if isinstance(self.probe, Preparing) else {}

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Measure one piece with the probe."""
        return self.probe.measure(subject, piece, context)

    def joined(self, others: Sequence[Any]) -> Alone:
        """Itself: it cannot be joined with other work."""
        return self

    def divided(self, partial: Partial) -> Sequence[Partial | NotApplicable]:
        """The whole output, for the only question."""
        return [partial]

    def partials(self, kept: Partial) -> Sequence[Partial]:
        """The stored piece, unchanged."""
        return [kept]
