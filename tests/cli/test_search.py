import io
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from retinoscope.cli.main import app
from retinoscope.cli.search import Progress
from retinoscope.core.errors import RetinoscopeError
from retinoscope.train.search.search import Search, Tried
from train.search.tiny_cnn import TINY_CNN, write_images

runner = CliRunner()


def test_a_search_and_the_commands_that_it_ends_with(tmp_path):
    out, data = tmp_path / "out", write_images(tmp_path / "two")
    command = [
        "search", TINY_CNN, "--data", data, "--recipe",
        "micro:epochs=1,warmup=0,batch=8,fraction=1.0", "--seeds", "1", "--out", str(out),
    ]  # fmt: skip
    done = runner.invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    found = Search.load(out, "result")
    assert found.protocol["recipe"]["epochs"] == 1
    rows = re.findall(r"\((\d),?\) +(\d) +([\d,]+) +(\S+) % +(\S+) % +(.+)", done.output)
    assert [(int(plan), int(msas)) for plan, msas, *_ in rows] == [(0, 0), (1, 1)]
    for place, (_, _, parameters, held_out, test, verdict) in enumerate(rows):
        assert parameters == f"{found.parameters[place]:,}"
        assert float(held_out) == pytest.approx(100 * found.held_out[place, 0], abs=0.005)
        assert float(test) == pytest.approx(100 * found.test[place, 0], abs=0.005)
        assert verdict.strip() == ("as it was", "kept" if found.kept[1] else "no better")[place]
    assert "2 candidates at most" in done.output
    assert (out / "search.svg").read_text().startswith("<?xml")
    (line,) = [line for line in done.output.splitlines() if line.startswith("Next: ")]
    following = shlex.split(line.removeprefix("Next: "))[1:]
    examined = runner.invoke(app, [*following, "--images", "8", "--out", str(tmp_path / "run")])
    assert examined.exit_code == 0, examined.output

    again = runner.invoke(app, [*command, "--seeds", "2"])
    assert isinstance(again.exception, RetinoscopeError)
    assert "seeds: 1 → 2" in str(again.exception)


def test_help_teaches():
    shown = re.sub(r"[\s│]+", " ", runner.invoke(app, ["search", "--help"]).output)
    for word in ("Park & Kim", "compared on held-out training images", "--jobs", "list recipes"):
        assert word in shown


def test_progress_tells_how_long_it_will_take():
    now, text = [0.0], io.StringIO()
    progress = Progress(Console(file=text, width=200), clock=lambda: now[0])
    progress.begin(3, 4)
    progress.candidate(1, (0, 0), 2)
    row = {"epoch": 1, "accuracy": 0.5}
    progress.epoch(1, {"epoch": 0, "accuracy": 0.1}, True)
    now[0] = 100.0
    progress.epoch(1, row, False)
    progress.epoch(1, row | {"epoch": 2}, False)  # at the same moment: not said
    progress.scored(Tried((0, 0), 0.5, False))
    said = text.getvalue().splitlines()
    assert said[1] == "candidate 1: (0, 0), 2 of 4 epochs were done before"
    # 100 s an epoch; 1 is left of this candidate, 8 of two more.
    assert said[2].endswith("3 of 4 epochs, 1 min 40 s left; for all that can come 15 min")
    assert said[3:] == ["  held out 50.00 %, no better"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--recipe", "micr"], "There is no recipe 'micr'"),
        (["--recipe", "micro:pretrained=True"], "begin with random weights"),
    ],
)
def test_mistakes_are_explained(arguments, says, tmp_path):
    done = runner.invoke(app, ["search", "micro_resnet", "--out", str(tmp_path), *arguments])
    assert isinstance(done.exception, RetinoscopeError)
    assert says in str(done.exception)
    assert not list(Path(tmp_path).iterdir())
