"""Every command says in one line where it assumes how a network wants its images."""

import json

import pytest
from typer.testing import CliRunner

from retinoscope import load_model
from retinoscope.cli.main import app

OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(c, 4, 3, 1, 1) for c in (3, 4, 4))
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.a(self.norm(x).relu())
        x = x + self.b(x.relu())
        return self.head(x.mean((2, 3)))

def build():
    return Net()
"""
TRAIN = "micro:fraction=0.0008,scored=20,batch=8,epochs=1,warmup=0"
COMMANDS = {
    "anatomy": ["anatomy", "net.py:build"],
    "examine": ["examine", "net.py:build", "--images", "4", "--probe", "variance"],
    "advise": ["advise", "net.py:build", "--images", "4"],
    "build": ["build", "net.py:build", "--apply", "mc_dropout"],
    "train": ["train", TRAIN, "--model", "net.py:build", "--workers", "0", "--until", "1"],
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(OWN)


def run(words):
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_size_that_is_assumed_is_said_and_one_that_is_given_is_used(own, words):
    done = run(words)
    (said,) = [line for line in done.stderr.splitlines() if "does not specify" in line]
    assert "size 32×32 (assumed: at 224 px its last map would be 224×224" in said
    assert "To change it: --size" in said
    assert "size=…" in said
    given = [*words, "--size", "8"]
    if words[0] != "anatomy":  # of which normalisation is no part
        assert "mean and std of ImageNet" in said
        given += ["--mean", "0.5", "--std", "0.25"]
    if words[0] == "train":
        given += ["--out", "other"]
    done = run(given)
    assert "does not say" not in done.stderr


def test_a_training_keeps_size_and_normalisation_for_those_who_load_its_weights(own):
    words = [*COMMANDS["train"][:-2], "--size", "8", "--mean", "0.5", "--std", "0.25"]
    done = run([*words, "--out", "out"])
    assert done.exit_code == 0, done.output
    recipe = json.loads(open("out/training.json").read())["recipe"]
    assert (recipe["size"], recipe["mean"], recipe["std"]) == ([8, 8], [0.5], [0.25])
    loaded = load_model("net.py:build", weights="out/snapshots/end.safetensors")
    assert loaded.image == (3, 8, 8)
    assert (loaded.preprocessing.mean, loaded.preprocessing.std) == ((0.5,), (0.25,))
    assert loaded.assumed == ()


def test_a_built_file_keeps_the_normalisation_that_was_given(own):
    words = [*COMMANDS["build"], "--size", "8", "--mean", "0.5", "--out", "a.safetensors"]
    assert run(words).exit_code == 0
    loaded = load_model("net.py:build", weights="a.safetensors")
    assert (loaded.image, loaded.preprocessing.mean) == ((3, 8, 8), (0.5,))
    assert loaded.assumed == ("mean and std of ImageNet",) or loaded.assumed == ("std of ImageNet",)


def test_the_protocol_of_a_subject_carries_it(own):
    from retinoscope import load_subject

    subject = load_subject("net.py:build", images=2)
    assert [one.split(" ")[0] for one in subject.assumed] == ["size", "mean"]
    assert set(subject.assumed) < set(subject.protocol["assumed"])
    assert load_subject("net.py:build", images=2, size=8, mean=0.5, std=1).assumed == []
