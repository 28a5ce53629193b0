import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from retinoscope.cli.training_table import LiveTable, best_row, training_table
from retinoscope.core.wording import duration
from retinoscope.train.listener import Started


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def row(epoch, accuracy=0.5, **others):
    numbers = {"epoch": epoch, "step": 10 * epoch, "lr": 1e-3, "nll_train": 1.5 if epoch else None}
    return numbers | {"accuracy": accuracy, "nll": 1.25, "ece": 0.0625, "images": 50} | others


def started(done=0, epochs=4):
    return Started("micro", "[net]", "cues", Path("x"), 10 * epochs, 10, done, epochs, 200, {})


@pytest.fixture
def shown(monkeypatch):
    """A table on a console, its clock, and what has been written."""
    monkeypatch.setenv("TERM", "xterm-256color")

    def make(terminal):
        out, clock = io.StringIO(), Clock()
        console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
        return LiveTable(console, clock), clock, out

    return make


def run(table, clock, epoch, seconds=1.0):
    for step in range(10 * epoch - 9, 10 * epoch + 1):
        clock.now += seconds
        table.step(step)


def last_drawing(out):
    """What stands on the terminal: the text behind the last control sequence that moves up."""
    drawn = re.split(r"\x1b\[\d*A|\x1b\[2K|\r", out.getvalue())
    tops = [i for i, part in enumerate(drawn) if "learning rate" in part]
    return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", "".join(drawn[tops[-1] :]))


def test_plain_lines(shown):
    table, clock, out = shown(False)
    table.begin(started())
    clock.now += 100  # looking at the network before training is no part of its speed
    table.epoch(row(0))
    for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, 0.6), (4, 0.7)):
        run(table, clock, epoch)
        table.epoch(row(epoch, accuracy))
    table.end()
    numbers = "NLL 1.250, ECE 0.062"
    assert out.getvalue().splitlines() == [
        "micro: [net] on cues, 200 images, 4 epochs of 10 steps",
        f"epoch 0 of 4, learning rate 1.00e-03, accuracy 50.00 %, {numbers}",
        f"epoch 1 of 4, learning rate 1.00e-03, train NLL 1.500, accuracy 50.00 %, {numbers}, "
        "30 s left",
        f"epoch 2 of 4, learning rate 1.00e-03, train NLL 1.500, accuracy 75.00 %, {numbers}, "
        "20 s left",
        f"epoch 3 of 4, learning rate 1.00e-03, train NLL 1.500, accuracy 60.00 %, {numbers}, "
        "10 s left",
        f"epoch 4 of 4, learning rate 1.00e-03, train NLL 1.500, accuracy 70.00 %, {numbers}",
    ]


def test_a_line_every_half_a_minute_within_an_epoch(shown):
    """Steps of 20 images take 8 s each: lines after 32 s and 64 s, then the epoch's own."""
    table, clock, out = shown(False)
    table.begin(started())
    run(table, clock, 1, seconds=8)
    table.epoch(row(1))
    clock.now += 8
    table.step(11)
    lines = out.getvalue().splitlines()[1:]
    assert lines[:2] == [
        "step 4 of 40, 2.5 images/s, 4 min 48 s left",
        "step 8 of 40, 2.5 images/s, 4 min 16 s left",
    ]
    assert len(lines) == 3
    assert lines[2].endswith("4 min left")


def test_great_speed_is_written_in_full(shown):
    table, clock, out = shown(False)
    table.begin(Started("a", "b", "c", Path("x"), 100, 10, 0, 10, 1_000_000, {}))
    clock.now += 40
    table.step(4)
    assert out.getvalue().splitlines()[1] == "step 4 of 100, 10000 images/s, 16 min left"


def test_without_scores(shown):
    table, clock, out = shown(False)
    table.begin(started())
    run(table, clock, 1)
    table.epoch(row(1, None, nll=None, ece=None))
    assert out.getvalue().splitlines()[1] == (
        "epoch 1 of 4, learning rate 1.00e-03, train NLL 1.500, 30 s left"
    )


def test_resumed_on_a_plain_console(shown):
    """Old rows are silent, and their steps took no time."""
    table, clock, out = shown(False)
    table.begin(started(done=20))
    for epoch in range(3):
        table.epoch(row(epoch))
    run(table, clock, 3, seconds=2)
    table.epoch(row(3))
    lines = out.getvalue().splitlines()
    assert lines[1] == "goes on from step 20 of 40, epoch 3 of 4"
    assert len(lines) == 3
    assert lines[2].startswith("epoch 3 of 4, ")
    assert lines[2].endswith(", 20 s left")


def test_resumed_within_an_epoch(shown):
    table, clock, out = shown(False)
    table.begin(started(done=25))
    table.epoch(row(2))
    for step in range(26, 31):
        clock.now += 7
        table.step(step)
    assert out.getvalue().splitlines()[1:] == [
        "goes on from step 25 of 40, epoch 3 of 4",
        "step 30 of 40, 2.86 images/s, 1 min 10 s left",
    ]


def test_the_table_on_a_terminal(shown):
    table, clock, out = shown(True)
    table.begin(started(epochs=20))
    table.epoch(row(0, 0.1))
    for epoch in range(1, 16):
        run(table, clock, epoch)
        table.epoch(row(epoch, 0.9 if epoch == 9 else 0.5))
    table.say("a line [that] stays")
    table.end()
    assert "micro: [net] on cues" in out.getvalue()
    assert "a line [that] stays" in out.getvalue()
    standing = last_drawing(out)
    cells = [line.split() for line in standing.splitlines()]
    epochs = [int(line[0]) for line in cells if line and line[0].isdigit()]
    assert epochs == list(range(4, 16))
    assert [line[0] for line in cells if line and line[-1] == "★"] == ["9"]
    assert "★ best accuracy: 90.00 %, epoch 9" in standing
    assert "step 150 of 200  20 images/s  50 s left" in standing


def test_a_resumed_table_shows_old_rows(shown):
    table, clock, out = shown(True)
    table.begin(started(done=20))
    for epoch in range(3):
        table.epoch(row(epoch))
    run(table, clock, 3, seconds=2)
    table.epoch(row(3))
    table.end()
    standing = last_drawing(out)
    assert len([line for line in standing.splitlines() if " 50.00 % " in line]) == 4
    assert "step 30 of 40  10 images/s  20 s left" in standing
    assert "goes on from step 20 of 40, epoch 3 of 4" in out.getvalue()


def test_end_comes_more_than_once(shown):
    table, _, out = shown(True)
    table.end()
    table.begin(started())
    table.end()
    written = out.getvalue()
    table.end()
    assert out.getvalue() == written
    assert written.count("\x1b[?25h") == 1  # the cursor is there again


def test_a_terminal_that_cannot_draw(shown, monkeypatch):
    table, clock, out = shown(True)
    monkeypatch.setenv("TERM", "dumb")
    table.begin(started())
    run(table, clock, 1)
    table.epoch(row(1))
    table.end()
    assert "\x1b" not in out.getvalue()
    assert "epoch 1 of 4" in out.getvalue()


def test_the_best_is_the_first_of_the_highest():
    rows = [row(0, None), row(1, 0.5), row(2, 0.75), row(3, 0.75)]
    assert best_row(rows) is rows[2]
    assert best_row(rows[:1]) is None
    assert training_table(rows[:1]).caption is None


def test_durations():
    assert [duration(s) for s in (0, 59.4, 59.6, 3599, 3600, 86_399)] == [
        "0 s", "59 s", "1 min", "59 min 59 s", "1 h", "23 h 59 min",
    ]  # fmt: skip
