"""A task: what one worker does at a time, in this process or in another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isfunction
from typing import Any

import numpy as np

from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import Partial, Piece
from retinoscope.core.subject import Batch, SetAside, Split, Subject
from retinoscope.core.view import View
from retinoscope.run.piece import Finished
from retinoscope.run.work import Work

PREPARED = "prepared"
"""The name under which what a probe prepares is kept, beside its pieces."""


@dataclass(frozen=True)
class Task:
    """One piece of some work, or what is prepared before all its pieces."""

    work: Work
    piece: Piece | None
    """None: prepare."""
    prepared: Partial = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the file in which the outcome is kept."""
        return PREPARED if self.piece is None else self.piece.name


@dataclass(frozen=True)
class Outcome:
    """What a task gave, and what had to be said on the way."""

    finished: Finished | None
    """None where the probe is not applicable after all."""
    notices: tuple[str, ...] = ()
    refused: str = ""
    """Why it is not, where only measuring shows it."""
    error: RetinoscopeError | None = None
    """What went wrong; other tasks go on."""
    seconds: float = 0.0


def perform(task: Task, subject: Subject) -> Outcome:
    """Do the work of a task; images that it had to set aside come back with what it gave."""
    start = time.monotonic()
    aside: list[SetAside] = []
    notices: list[str] = []
    recorded = _recorded(subject, aside)
    context = Context(
        task.prepared, notices.append, lambda name: _recorded(subject.another(name), aside)
    )
    try:
        if task.piece is None:
            partial = task.work.prepare(recorded, context)
        else:
            partial = task.work.measure(recorded, task.piece, context)
    except NotApplicable as reason:
        return Outcome(None, tuple(dict.fromkeys(notices)), refused=str(reason))
    except RetinoscopeError as error:
        # As the base class: an error with arguments of its own may not survive the way back.
        kept = RetinoscopeError(str(error)) if isfunction(type(error).__init__) else error
        return Outcome(None, tuple(dict.fromkeys(notices)), error=kept)
    finished = Finished(partial, tuple(dict.fromkeys(aside)))
    return Outcome(finished, tuple(dict.fromkeys(notices)), seconds=time.monotonic() - start)


def _recorded(subject: Subject, aside: list[SetAside]) -> Subject:
    splits = {name: _Recorded(split, aside) for name, split in subject.splits.items()}
    return replace(subject, splits=splits)


@dataclass(frozen=True)
class _Recorded:
    """A split that remembers what it had to set aside, whoever reads it and in whatever view."""

    kept: Split
    aside: list[SetAside] = field(repr=False)

    @property
    def labelled(self) -> bool:
        return self.kept.labelled

    @property
    def unlabelled_because(self) -> str:
        return self.kept.unlabelled_because

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        return self.kept.attributes

    @property
    def fingerprint(self) -> str:
        return self.kept.fingerprint

    @property
    def protocol(self) -> Mapping[str, Any]:
        return self.kept.protocol

    def __len__(self) -> int:
        return len(self.kept)

    def known(self) -> _Recorded:
        return _Recorded(self.kept.known(), self.aside)

    def viewed(self, view: View) -> _Recorded:
        return _Recorded(self.kept.viewed(view), self.aside)

    def names(self, indices: Sequence[int]) -> list[str]:
        return self.kept.names(indices)

    def batches(self, indices: Sequence[int], size: int, workers: int = 0) -> Iterator[Batch]:
        for batch in self.kept.batches(indices, size, workers):
            self.aside.extend(batch.set_aside)
            yield batch
