"""A task: the unit of work of one worker, in this process or in another."""

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
"""The name of the file with the output of ``prepare``, next to the pieces."""


@dataclass(frozen=True)
class Task:
    """One piece of some work, or the preparation before all its pieces."""

    work: Work
    piece: Piece | None
    """None: run ``prepare``."""
    prepared: Partial = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file with the outcome."""
        return PREPARED if self.piece is None else self.piece.name


@dataclass(frozen=True)
class Outcome:
    """The output of a task, with its notices."""

    finished: Finished | None
    """None if the probe turned out not to be applicable, or failed."""
    notices: tuple[str, ...] = ()
    refused: str = ""
    """Why it is not applicable, if only measuring shows it."""
    error: RetinoscopeError | None = None
    """The error that made it fail; other tasks continue."""
    seconds: float = 0.0


def perform(task: Task, subject: Subject) -> Outcome:
    """Perform a task; the outcome also lists images that could not be read."""
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
        # Use the base class: an error with arguments of its own may not survive pickling.
        kept = RetinoscopeError(str(error)) if isfunction(type(error).__init__) else error
        return Outcome(None, tuple(dict.fromkeys(notices)), error=kept)
    finished = Finished(partial, tuple(dict.fromkeys(aside)))
    return Outcome(finished, tuple(dict.fromkeys(notices)), seconds=time.monotonic() - start)


def _recorded(subject: Subject, aside: list[SetAside]) -> Subject:
    splits = {name: _Recorded(split, aside) for name, split in subject.splits.items()}
    return replace(subject, splits=splits)


@dataclass(frozen=True)
class _Recorded:
    """A split that records the images that could not be read, for every reader and view."""

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
