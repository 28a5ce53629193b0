import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from retinoscope.cli.main import app
from retinoscope.probes import parse_probe
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.hessian import Hessian
from retinoscope.run.estimate import Pass
from retinoscope.run.job import Job, work_of
from retinoscope.run.plan import Plan
from retinoscope.workflows.cheaper import cheaper_command
from retinoscope.workflows.forecast import rounds, say_forecast
from run.elsewhere import TINY


def planned(name, *passes):
    """A plan with passes of (probe, seconds)."""
    subject = SimpleNamespace(name=name, splits={"test": range(100)})
    plan = Plan(subject, Path(), ())  # type: ignore[arg-type]
    plan.passes = [
        Pass((Job(probe, work_of(probe), "key", Path(), ()),), seconds) for probe, seconds in passes
    ]
    return plan


def order(*plans):
    return [(plan.subject.name, one.names) for plan, some in rounds(plans) for one in some]


def test_cheap_probes_of_all_models_come_before_dear_ones_of_any():
    first = planned("a", (Hessian(), 900.0), (Fourier(), 10.0))
    second = planned("b", (Hessian(), 800.0), (Fourier(), 5.0))
    assert order(first, second) == [
        ("a", "fourier"), ("b", "fourier"), ("a", "hessian"), ("b", "hessian"),
    ]  # fmt: skip


def test_what_is_dear_for_one_model_is_dear_for_all_and_the_unknown_comes_last():
    landscape = parse_probe("landscape")
    first = planned("a", (landscape, None), (Hessian(), 10.0), (Fourier(), 1.0))
    second = planned("b", (Hessian(), 900.0), (Fourier(), 1.0))
    assert order(first, second) == [
        ("a", "fourier"), ("b", "fourier"), ("a", "hessian"), ("b", "hessian"), ("a", "landscape"),
    ]  # fmt: skip


def test_the_forecast_adds_up_and_names_each_model():
    said = []
    plans = [planned("a", (Fourier(), 10.0)), planned("b", (Fourier(), 19.0))]
    say_forecast(plans, 30.0, said.append)
    assert said[0].startswith("Estimated time on this machine: 1 min in total, including 30 s")
    assert said[1:] == ["  fourier: a 10 s, b 19 s"]
    say_forecast([planned("a")], 1.0, said.append)
    assert len(said) == 2


def test_above_ten_minutes_a_cheaper_command_is_named():
    said, words = [], ["retinoscope", "examine", "a", "--preset", "standard"]
    plans = [planned("a", (Fourier(), 10.0), (Hessian(), 4000.0))]
    say_forecast(plans, 0.0, said.append, words, "standard")
    assert said[-1].endswith("Cheaper: retinoscope examine a --preset quick")
    said.clear()
    say_forecast(plans, 0.0, said.append)
    assert "preset='quick'" in said[-1]
    say_forecast([planned("a", (Hessian(), 500.0))], 0.0, said.append, words)
    assert "Cheaper" not in said[-1]


@pytest.mark.parametrize(
    ("words", "seconds", "preset"),
    [
        (["--preset", "standard"], {"fourier": 10.0, "hessian:batches=4": 4000.0}, "standard"),
        (["--probe=hessian:k=3", "--probe", "variance"], {"hessian:k=3": 4e3, "variance": 1}, None),
        (["--images", "9"], {"fourier": 4000.0}, "quick"),
        (["--preset", "paper", "--images=9"], {"fourier": 4e3, "variance": 4e3}, "paper"),
    ],
)
def test_the_cheaper_command_runs_as_printed(tmp_path, words, seconds, preset):
    out = ["--out", str(tmp_path / "with space")]
    command = ["retinoscope", "examine", TINY, *words, *out]
    cheaper = shlex.split(cheaper_command(command, seconds, 8, preset))
    assert cheaper[:3] == ["retinoscope", "examine", TINY]
    smaller = [] if any(word.startswith("--images") for word in cheaper) else ["--images", "32"]
    done = CliRunner().invoke(app, [*cheaper[1:], *smaller])
    assert done.exit_code == 0, done.output
