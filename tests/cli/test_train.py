import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retinoscope.cli.main import app

TINY = Path(__file__).parent.parent / "train" / "tiny.py"
QUICK = "micro:fraction=0.0008,scored=20,batch=8"


def run(*words: str):
    return CliRunner().invoke(app, ["train", *words])


def quick(out: Path, *more: str):
    return run(
        QUICK, "--model", f"{TINY}:build:img_size=32", "--epochs", "1", "--workers", "0",
        "--out", str(out), *more,
    )  # fmt: skip


def test_a_training_ends_with_curves_and_a_model(tmp_path):
    done = quick(tmp_path / "out", "--seed", "3")
    assert done.exit_code == 0, done.output
    assert f"Trained model: {tmp_path}/out/snapshots/end.safetensors" in done.output
    assert "Learning curves" in done.output
    described = json.loads((tmp_path / "out" / "training.json").read_text())
    assert described["name"] == "micro"
    assert (described["recipe"]["seed"], described["recipe"]["epochs"]) == (3, 1)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "How did it learn?" in page
    again = quick(tmp_path / "out", "--seed", "3")
    assert again.exit_code == 0
    assert "end.safetensors" in again.output


def test_it_stops_and_goes_on(tmp_path):
    first = quick(tmp_path / "out", "--until", "3")
    assert "Not finished" in first.output
    assert not (tmp_path / "out" / "snapshots" / "end.safetensors").exists()
    second = quick(tmp_path / "out")
    assert "goes on" in second.output or "going on" in second.output
    assert (tmp_path / "out" / "snapshots" / "end.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mikro"], "no recipe 'mikro'. Did you mean 'micro'"),
        (["micro:epoch=2"], "micro has no field 'epoch'. Did you mean 'epochs'"),
        (["micro:fraction=0.0002", "--batch", "64"], "A batch of 64 cannot be filled"),
        (["micro", "--model", "resnet18"], "has 1000 answers, but cues has 10 classes"),
        (["micro", "--track", "tensorbord"], "tensorboard"),
        (["micro", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["micro", "--data", "nowhere"], "There are no data 'nowhere'"),
    ],
)
def test_mistakes_are_said(words, says, tmp_path):
    done = run(*words, "--out", str(tmp_path / "out"))
    assert done.exit_code
    assert says in str(done.exception or done.output)


def test_the_folder_is_named_after_what_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(QUICK, "--model", "micro_vit", "--epochs", "1", "--until", "1", "--workers", "0")
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["micro-micro_vit-cues-seed0"]


def test_help_teaches():
    text = run("--help").output
    for word in ("torchrun", "cifar_strong", "checkpoint"):
        assert word in text
