import io
import time

from rich.console import Console

from retinoscope.run import progress
from retinoscope.run.progress import Reporter


def test_plain_lines_without_a_terminal(monkeypatch):
    out, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    reporter = Reporter(Console(file=out, width=30))
    reporter.begin("fourier of [bold]model", 10, done=2)
    for _ in range(4):
        clock[0] += 6
        reporter.advance()
    reporter.end()
    # After 12 and 24 seconds; each piece takes 6, and six and four are left.
    assert out.getvalue().splitlines() == [
        "fourier of [bold]model: 4 of 10 pieces, 36 s left",
        "fourier of [bold]model: 6 of 10 pieces, 24 s left",
    ]


def test_a_bar_on_a_terminal():
    out = io.StringIO()
    reporter = Reporter(Console(file=out, force_terminal=True, width=100))
    reporter.begin("variance of tiny", 2)
    reporter.advance()
    time.sleep(0.15)  # the bar is drawn ten times a second
    reporter.say("a line that stays")
    reporter.end()
    assert "variance of tiny" in out.getvalue()
    assert "1/2" in out.getvalue()
    assert "a line that stays" in out.getvalue()


def test_silence():
    reporter = Reporter()
    reporter.begin("x", 1)
    reporter.advance()
    reporter.say("nobody hears")
    reporter.end()
