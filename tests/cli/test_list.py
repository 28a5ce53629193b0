import shlex
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from retinoscope.cli.main import app
from retinoscope.core.errors import UnknownProbe, WrongInput
from retinoscope.core.settings import example
from retinoscope.probes import get_probe, list_probes, parse_probe
from retinoscope.recipes import list_recipes
from retinoscope.surgery import get_surgery, list_surgeries
from sampling import sampled

runner = CliRunner()

OWN = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar, Literal
from retinoscope.core.settings import setting
from retinoscope.probes.variance import Variance as _Variance, VarianceResult
from sampling import sampled

@dataclass(frozen=True)
class EffectiveRank(_Variance):
    """A probe of one's own."""
    question: ClassVar[str] = "How many directions?"
    result: ClassVar = VarianceResult
    k: int = setting(3, "How many.", at_least=1)
    mode: Literal["a", "b"] = setting("a", "Which.")

class NoProbe:
    pass
'''


def shown(*words: str) -> str:
    done = runner.invoke(app, ["list", *words], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_lists_are_brief():
    for what, names in (
        ("probes", list_probes()), ("surgeries", list_surgeries()), ("recipes", list_recipes()),
    ):  # fmt: skip
        lines = shown(what).splitlines()
        assert len(lines) == len(names) + 1
        assert all(line.startswith(name) for line, name in zip(lines, names, strict=False))


@pytest.mark.parametrize("name", list_probes())
def test_a_probe_is_taught(name):
    probe, text = get_probe(name), shown("probes", name)
    assert probe.question in text
    assert " ".join(probe.reading.split())[:60] in " ".join(text.split())
    for field in fields(probe):
        assert field.name in text
        assert field.metadata["help"] in text
    *_, command = text.strip().splitlines()
    words = shlex.split(command)
    assert words[:4] == ["retinoscope", "examine", "micro_resnet", "--probe"]
    assert parse_probe(words[4]) == probe()


def test_a_probe_of_ones_own_is_taught(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    text = shown("probes", "./own.py:EffectiveRank")
    assert "How many directions?" in text
    assert "an integer, 1 or more" in text
    assert "a | b" in text
    assert "--probe ./own.py:EffectiveRank:k=3,mode=a" in text
    assert parse_probe("./own.py:EffectiveRank:k=5").k == 5


@pytest.mark.parametrize("name", sampled(list_surgeries(), "mc_dropout"))
def test_the_example_of_a_surgery_works_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = shown("surgeries", name)
    command = shlex.split(text.strip().splitlines()[-1])
    assert example(get_surgery(name), name) in command
    done = runner.invoke(app, command[1:])
    assert done.exit_code == 0, done.output + str(done.exception)
    assert (tmp_path / f"{name}.safetensors").is_file()


def test_a_recipe_is_taught():
    text = shown("recipes", "cifar_strong")
    assert "retinoscope train cifar_strong --model resnet50_cifar" in text
    for word in (
        "randaugment",
        "rand-m9-n2-mstd1.0",
        "Learning rate after warm-up.",
        "this recipe",
    ):
        assert word in text


def test_what_does_not_exist_is_refused():
    with pytest.raises(UnknownProbe, match=r"There is no probe 'hesian'\. Did you mean 'hessian'"):
        shown("probes", "hesian")
    with pytest.raises(WrongInput, match="The data have no settings to show"):
        shown("data", "cues")
