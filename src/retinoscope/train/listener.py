"""Who is told how a training goes: a table on the terminal, a tracker of experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Started:
    """What is about to be done."""

    name: str
    """Of the recipe."""
    model: str
    data: str
    folder: Path
    steps: int
    """Optimiser steps in all."""
    per_epoch: int
    done: int
    """Steps that an earlier process has done."""
    epochs: int
    """With those of the warm-up."""
    images: int
    """To train on, each once an epoch."""
    recipe: Mapping[str, Any]


class Listener(Protocol):
    """Hears of every step and epoch, in the process that writes the log."""

    def begin(self, started: Started) -> None:
        """It begins or goes on; the epochs that were there already follow."""
        ...

    def step(self, step: int) -> None:
        """So many optimiser steps are done."""
        ...

    def epoch(self, row: Mapping[str, Any]) -> None:
        """A row of the log."""
        ...

    def say(self, text: str) -> None:
        """Something a person should know."""
        ...

    def end(self) -> None:
        """No more comes, be it for good or for an error."""
        ...
