"""Listeners, which follow a training: a table on the terminal, an experiment tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Started:
    """The training that begins or resumes."""

    name: str
    """Name of the recipe."""
    model: str
    data: str
    folder: Path
    steps: int
    """Total number of optimiser steps."""
    per_epoch: int
    done: int
    """Steps that an earlier process has completed."""
    epochs: int
    """Number of epochs, including warm-up."""
    images: int
    """Number of training images."""
    recipe: Mapping[str, Any]


class Listener(Protocol):
    """Is notified of every step and epoch, in the process that writes the log."""

    def begin(self, started: Started) -> None:
        """The training begins or resumes; :meth:`epoch` is called next for earlier epochs."""
        ...

    def step(self, step: int) -> None:
        """This many optimiser steps are done."""
        ...

    def epoch(self, row: Mapping[str, Any]) -> None:
        """A row of the log."""
        ...

    def say(self, text: str) -> None:
        """A message for the user."""
        ...

    def end(self) -> None:
        """The training has ended, normally or with an error."""
        ...
