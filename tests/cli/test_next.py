"""The command that build and train print to go on with runs as it is printed."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.test_assumed import OWN, TRAIN
from retinoscope.cli.main import app

QUICK = ["--images", "4", "--probe", "variance"]
MODELS = ["micro_resnet", "net.py:build", "./net.py:build:width=5", "own code/my net.py:build"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = OWN.replace("def build():\n    return Net()", "def build(width=4):\n    return Net()")
    Path("own code").mkdir()
    for file in ("net.py", "own code/my net.py"):
        Path(file).write_text(code)


def run(words):
    done = CliRunner().invoke(app, words, env={"COLUMNS": "60"})
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def go_on(output, *more):
    (line,) = [line for line in output.splitlines() if line.startswith("Next: ")]
    command = shlex.split(line.removeprefix("Next: "))
    assert command[0] == "retinoscope"
    return run([*command[1:], *QUICK, *more])


@pytest.mark.parametrize("model", MODELS)
def test_what_build_prints_runs(here, model):
    out = "a folder/built [1].safetensors" if " " in model else "built.safetensors"
    Path("a folder").mkdir()
    words = ["build", model, "--untrained", "--size", "8", "--apply", "mc_dropout:p=0.1"]
    done = run([*words, "--out", out])
    assert "Report: " in go_on(done, "--passes", "1")


@pytest.mark.parametrize("model", MODELS)
def test_what_train_prints_runs(here, model):
    out = "a run/of mine" if " " in model else "run"
    words = ["train", TRAIN, "--model", model, "--size", "8", "--workers", "0", "--out", out]
    assert "Report: " in go_on(run(words))


def test_several_snapshots_of_own_code_in_one_examination(here):
    for seed in "01":
        run(["train", TRAIN, "--model", "net.py:build", "--size", "8", "--workers", "0",
             "--seed", seed, "--out", f"runs/seed{seed}"])  # fmt: skip
    names = [f"net.py:build:weights=runs/seed{seed}/snapshots/end.safetensors" for seed in "01"]
    run(["examine", *names, *QUICK, "--out", "short"])
    assert shown("short") == {"net.py:build (seed0/end)", "net.py:build (seed1/end)"}
    run(["examine", f"one={names[0]}", f"two={names[1]}", *QUICK, "--out", "labelled"])
    assert shown("labelled") == {"one", "two"}
    page = Path("labelled/report.html").read_text()
    assert "one" in page
    assert "two" in page


def shown(folder):
    """The names of a run's subjects; the protocol keeps the full ones."""
    found = [json.loads(file.read_text()) for file in Path(folder).glob("*/subject.json")]
    assert all(one["protocol"]["model"].startswith("net.py:build:weights=") for one in found)
    return {one["name"] for one in found}
