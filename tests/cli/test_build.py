import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retinoscope import load_model
from retinoscope.cli.main import app
from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.settings import described
from retinoscope.surgery import get_surgery, list_surgeries, parse_surgery, write_surgery

runner = CliRunner()


@pytest.mark.proof
def test_build_then_examine(tmp_path):
    out = tmp_path / "vit.safetensors"
    done = runner.invoke(
        app,
        ["build", "micro_vit:depth=1", "--untrained", "--apply", "context_broadcasting", "--apply",
         "mc_dropout:p=0.1,always=False", "--out", str(out)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "lost    0 tensors" in done.output
    assert "context_broadcasting" in done.output
    assert load_model(str(out)).construction.surgeries == (
        "context_broadcasting", "mc_dropout:p=0.1,always=False"
    )  # fmt: skip
    run = [
        "examine",
        str(out),
        "--images",
        "8",
        "--probe",
        "variance",
        "--out",
        str(tmp_path / "run"),
    ]
    done = runner.invoke(app, run)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "report.html").is_file()


def test_without_a_file_it_only_tells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(
        app, ["build", "micro_vit:depth=1", "--untrained", "--apply", "mc_dropout"]
    )
    assert "Nothing was written" in done.output
    assert "touches 1 unit: blocks.0.mlp" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build", "micro_vit"], "Name at least one surgery with --apply. There are: build_up"),
        (["build", "micro_vit", "--apply", "cb"], "There is no surgery 'cb'"),
        (["build", "micro_vit", "--apply", "mc_dropout", "--out", "a.pth"], "is a .safetensors"),
        (["build", "micro_mixer", "--apply", "gap_head"], "weights of micro_mixer cannot be had"),
        (["advise", "micro_resnet", "--untrained", "--msas", "0"], "must be at least 1; got 0"),
        (["list", "surgery"], "There are: models, probes, presets, surgeries, recipes, data"),
    ],
)
def test_mistakes_are_explained(arguments, says):
    done = runner.invoke(app, arguments)
    assert isinstance(done.exception, RetinoscopeError)
    assert says in str(done.exception)


def test_the_command_that_advice_ends_with_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["advise", "micro_preact_resnet", "--untrained", "--images", "8"]
    done = runner.invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "The weights are untrained" in done.output
    (command,) = [line for line in done.output.splitlines() if line.startswith("retinoscope build")]
    built = runner.invoke(app, shlex.split(command)[1:])
    assert built.exit_code == 0, built.output
    assert Path("alternet.safetensors").is_file()
    planned = re.search(r"msa_per_stage=\(([\d, ]+)\)", command)[1]
    wanted = [int(n) for n in planned.split(",")]
    stages = load_model("alternet.safetensors").model
    found = [
        sum(type(m).__name__ == "AttentionBlock" for m in stages.get_submodule(f"layer{s}"))
        for s in (1, 2, 3, 4)
    ]
    assert found == wanted
    assert sum(wanted) == 4


def test_every_surgery_describes_itself_and_can_be_written_down():
    done = runner.invoke(app, ["list", "surgeries"], env={"COLUMNS": "300"})
    for name in list_surgeries():
        assert name in done.output
        kind = get_surgery(name)
        assert kind.__doc__
        assert all(row.text for row in described(kind))
    for text in ("build_up:msa_per_stage=(0, 1),window=3", "mc_dropout:p=0.25,always=False"):
        assert write_surgery(parse_surgery(text)) == text
        assert parse_surgery(write_surgery(parse_surgery(text))) == parse_surgery(text)
