"""Progress output: the current work and the time left, as a bar on a terminal, else as lines."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retinoscope.core.wording import duration

_EVERY = 10.0
"""Seconds between two lines if there is no terminal."""


def progress_bar(console: Console) -> Progress:
    """A bar that disappears when the work is done; without a terminal nothing is shown."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Reporter:
    """Reports progress on a console; silent if ``console`` is None."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._what, self._total, self._done, self._before = "", 0, 0, 0
        self._started = self._said = time.monotonic()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start counting; ``done`` pieces exist already."""
        self.end()
        self._what, self._total, self._done, self._before = what, total, done, done
        self._started = self._said = time.monotonic()
        if self.console is not None:
            self._bar = progress_bar(self.console)
            self._bar.add_task(what, total=total, completed=done)
            self._bar.start()

    def advance(self) -> None:
        """Count one more finished piece."""
        self._done += 1
        if self._bar is None or self.console is None:
            return
        self._bar.advance(self._bar.task_ids[0])
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said >= _EVERY:
            self._said = now
            each = (now - self._started) / (self._done - self._before)
            left = each * (self._total - self._done)
            self.say(f"{self._what}: {self._done} of {self._total} pieces, {duration(left)} left")

    def end(self) -> None:
        """Stop counting."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """Print one permanent line."""
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def watched() -> Reporter:
    """A reporter that prints on a terminal or in a notebook and is silent in scripts."""
    seen = sys.stderr.isatty() or "ipykernel" in sys.modules
    return Reporter(Console(stderr=True) if seen else None)
