"""How a training goes: a table that is redrawn on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from retinoscope.core.wording import duration

if TYPE_CHECKING:
    from retinoscope.train.listener import Started

_EPOCHS = 12
"""How many of the last epochs the table shows."""

_EVERY = 30.0
"""Seconds between two lines within an epoch, where there is no terminal."""

_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "epoch": ("epoch", str),
    "lr": ("learning rate", "{:.2e}".format),
    "nll_train": ("train NLL", "{:.3f}".format),
    "accuracy": ("accuracy", lambda share: f"{100 * share:.2f} %"),
    "nll": ("NLL", "{:.3f}".format),
    "ece": ("ECE", "{:.3f}".format),
}
"""What of a row is shown: how it is called, and how it is written."""


class LiveTable:
    """Shows a person each epoch, how fast it goes and how long it will take.

    Time left and images per second come from the steps of this process alone.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live: Live | None = None
        self._started: Started | None = None
        self._rows: list[Mapping[str, Any]] = []
        self._step, self._since, self._now, self._said = 0, 0.0, 0.0, 0.0

    def begin(self, started: Started) -> None:
        """Say what begins or goes on; on a terminal, start drawing."""
        self.end()
        self._started, self._rows, self._step = started, [], started.done
        self._since = self._now = self._said = self._clock()
        self.say(
            f"{started.name}: {started.model} on {started.data}, {started.images} images, "
            f"{started.epochs} epochs of {started.per_epoch} steps"
        )
        if started.done:
            epoch = min(started.done // started.per_epoch + 1, started.epochs)
            self.say(
                f"goes on from step {started.done} of {started.steps}, "
                f"epoch {epoch} of {started.epochs}"
            )
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._view, refresh_per_second=4
            )
            self._live.start()

    def step(self, step: int) -> None:
        """Move the bar; where there is none, say how far it is every half a minute."""
        self._step, self._now = step, self._clock()
        if self._live is None and self._now - self._said >= _EVERY:
            self._said = self._now
            self.say(", ".join(self._progress()))

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Add a row to the table, or a line."""
        self._rows.append(row)
        self._said = self._clock()
        before = self._started.done if self._started else 0
        old = 0 < before == self._step
        if self._live is None and not old:
            self.say(self._line(row))
        if self._step == before:
            # What came before the first step was read from the log, or is no training.
            self._since = self._now = self._said

    def say(self, text: str) -> None:
        """One line that stays, above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Stop drawing; the last table stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, row: Mapping[str, Any]) -> str:
        """An epoch where there is no terminal."""
        total = self._started.epochs if self._started else 0
        cells = [
            f"{called} {write(row[name])}" + (f" of {total}" if name == "epoch" else "")
            for name, (called, write) in _COLUMNS.items()
            if row.get(name) is not None
        ]
        left = self._left()
        return ", ".join([*cells, *([f"{left} left"] if left else [])])

    def _progress(self) -> list[str]:
        """How far it is, how fast it goes and how long it will take, where that is known."""
        if self._started is None:
            return []
        parts = [f"step {self._step} of {self._started.steps}"]
        here, seconds = self._step - self._started.done, self._now - self._since
        if here > 0 and seconds > 0:
            speed = here * self._started.images / self._started.per_epoch / seconds
            parts.append(f"{speed:{'.0f' if speed >= 100 else '.3g'}} images/s")
        left = self._left()
        return [*parts, f"{left} left"] if left else parts

    def _left(self) -> str:
        """The time that the steps to come will take; empty where there is none or it is unknown."""
        if self._started is None:
            return ""
        here, ahead = self._step - self._started.done, self._started.steps - self._step
        if here <= 0 or ahead <= 0:
            return ""
        return duration((self._now - self._since) / here * ahead)

    def _view(self) -> Group:
        """The table with the bar below it."""
        if self._started is None:
            return Group()
        bar = Table.grid(padding=(0, 2, 0, 0))
        drawn = ProgressBar(total=max(1, self._started.steps), completed=self._step, width=30)
        bar.add_row(drawn, *(Text(part, no_wrap=True) for part in self._progress()))
        return Group(training_table(self._rows), Text(""), bar)


def training_table(rows: list[Mapping[str, Any]], last: int = _EPOCHS) -> Table:
    """The last rows of a log; the best accuracy of all is marked, and named below."""
    best = best_row(rows)
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="bold underline", caption_justify="left"
    )  # fmt: skip
    if best is not None:
        table.caption = f"★ best accuracy: {_written(best, 'accuracy')}, epoch {best['epoch']}"
    for called, _ in _COLUMNS.values():
        table.add_column(called, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows[-last:]:
        marked = row is best
        cells = [_written(row, name) for name in _COLUMNS]
        table.add_row(*cells, "★" if marked else "", style="bold green" if marked else "")
    return table


def best_row(rows: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first of the rows of highest accuracy; None where nothing was scored."""
    scored = [row for row in rows if row.get("accuracy") is not None]
    return max(scored, key=lambda row: row["accuracy"], default=None)


def _written(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "–" if value is None else _COLUMNS[name][1](value)
