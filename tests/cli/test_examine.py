import sys

import pytest
from typer.testing import CliRunner

from retinoscope.cli.main import app, main
from retinoscope.core.errors import RetinoscopeError
from retinoscope.report.collect import collect
from run.elsewhere import TINY

runner = CliRunner()


def test_examine_ends_with_a_report_and_goes_on_where_it_was(tmp_path):
    arguments = ["examine", TINY, "--images", "30", "--out", f"{tmp_path}/run"]
    probes = ["--probe", "fourier:bands=9", "--probe", "variance"]
    first = runner.invoke(app, [*arguments, *probes])
    assert first.exit_code == 0, first.output
    assert f"Report: {tmp_path}/run/report.html" in first.stdout
    assert "fourier, variance done in one pass, 1 of 1 pieces" in first.stderr
    second = runner.invoke(app, [*arguments, *probes])
    assert "fourier is already measured" in second.stderr
    (subject,) = collect([tmp_path / "run"]).examined
    assert subject.measured[0].result.frequency.shape[1] == 9
    fresh = runner.invoke(app, [*arguments, "--probe", "variance", "--fresh"])
    assert "variance done" in fresh.stderr
    assert len(collect([tmp_path / "run"]).examined[0].measured) == 1


def test_an_interrupt_is_told_that_nothing_is_lost(tmp_path, monkeypatch):
    from retinoscope.workflows import examine as module

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "examine", interrupted)
    result = runner.invoke(app, ["examine", TINY, "--out", f"{tmp_path}/r"])
    assert result.exit_code == 130
    assert "the same command goes on from there" in " ".join(result.stderr.split())


def test_a_failure_among_several_is_told_by_the_exit_code(tmp_path):
    result = runner.invoke(
        app, ["examine", TINY, "resnet51", "--untrained", "--images", "5", "--out", f"{tmp_path}/r"]
    )
    assert result.exit_code == 2
    assert "Not examined: resnet51" in result.stderr
    assert "Report:" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["examine", TINY, "--probe", "furier"], "There is no probe 'furier'. Did you mean"),
        (["examine", TINY, "--probe", "fourier:direction=up"], "one of diagonal, radial; got 'up'"),
        (["examine", TINY, "--probe", "fourier:bands=1"], "fourier: bands is 2 or more; got 1"),
        (["examine", TINY, "--probe", "fourier:band=1"], "no setting 'band'. Did you mean 'bands'"),
        (["examine", TINY, "--probe", "fourier:bands"], "'bands' in 'fourier:bands' is not of the"),
        (["examine", TINY, "--probe", "./x.py:Probe"], "There is no file './x.py'"),
        (["examine", f"a={TINY}", f"a={TINY}"], "The label 'a' is given to more than one model"),
        (["examine", TINY, "--hessian-batches", "4"], "Write it as --probe hessian:batches=4 and"),
        (["examine", TINY, "--hessian-batches=4"], "--hessian-batches is no longer a flag"),
        (
            ["examine", TINY, "--hessian-again", "--hessian-tolerance", "0.01"],
            "--hessian-again, --hessian-tolerance are no longer flags: settings follow the name "
            "of their probe. Write it as --probe hessian:again=True,tolerance=0.01",
        ),
        (
            ["examine", TINY, "--landscape-towards", "a,b.pth"],
            "--probe 'landscape:target=[a,b.pth]'",
        ),
        (["examine", TINY, "--images", "some"], "--images is a number from 1 on, or all"),
        (["examine", TINY, "--mean", "grey"], "--mean is a number or one per channel"),
        (
            ["examine", TINY, "--precision", "float8"],
            "precision is one of float32, float64",
        ),
        (["examine", TINY, "--data", "cuse"], "There are no data 'cuse'"),
        (["examine", TINY, TINY, "--weights", "w.pth"], "--weights is a file for one model"),
        (["examine", "resnet20_cifar"], "timm has none for this model"),
        (["report", "nowhere"], "is not a run folder"),
        (["list", "planets"], "There is no list of 'planets'. There are: models, probes, pres"),
    ],
)
def test_mistakes_end_in_one_paragraph(arguments, says, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["retinoscope", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 2
    assert says in shown
    assert "Traceback" not in shown


def test_help_teaches():
    text = " ".join(
        runner.invoke(app, ["examine", "--help"], env={"COLUMNS": "200"}).output.split()
    )
    for word in (
        "cifar100",
        "hessian:k=10,batches=8",
        "LABEL=NAME",
        "--ray",
        "resumes a run that was stopped",
        "three small",
    ):
        assert word in text


def test_help_fits_on_two_screens():
    lines = runner.invoke(app, ["examine", "--help"], env={"COLUMNS": "100"}).output.splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 100


def test_a_label_stands_in_the_report(tmp_path):
    out = f"{tmp_path}/run"
    arguments = ["examine", f"mine={TINY}", "--images", "10", "--probe", "variance", "--out", out]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "mine: variance done" in done.stderr
    assert [subject.name for subject in collect([tmp_path / "run"]).examined] == ["mine"]


def test_lists():
    assert "cues" in runner.invoke(app, ["list", "data"]).output
    models = runner.invoke(app, ["list", "models", "--filter", "cifar"]).output
    assert "resnet20_cifar  (ours)" in models


def test_exit_code_3_where_nothing_could_be_measured(tmp_path):
    from PIL import Image

    Image.new("RGB", (16, 16)).save(tmp_path / "one.png")
    asked = ["examine", TINY, "--data", str(tmp_path), "--probe", "hessian", "--out"]
    result = runner.invoke(app, [*asked, f"{tmp_path}/run"])
    assert result.exit_code == 3
    assert "hessian is not applicable" in result.stderr
    assert "Nothing that was asked for could be measured" in result.stderr
    assert "not applicable" in (tmp_path / "run" / "report.html").read_text()


def test_a_mistyped_name_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(runner.invoke(app, ["examine", "resnet51"]).exception, RetinoscopeError)
    assert isinstance(runner.invoke(app, ["examine", "a51", "b51"]).exception, RetinoscopeError)
    assert not list(tmp_path.glob("runs/*"))


def test_a_preset_is_taken_and_the_time_is_said_first(tmp_path):
    asked = ["examine", TINY, "--preset", "quick", "--images", "20", "--out", f"{tmp_path}/run"]
    result = runner.invoke(app, asked)
    assert result.exit_code == 0, result.output
    said = result.stderr.splitlines()
    (first,) = [i for i, line in enumerate(said) if line.startswith("Estimated time on this")]
    told = " ".join(said[first:])
    assert "tokens, oversmoothing, attention, consistency, similarity (one pass): " in told
    assert first < min(i for i, line in enumerate(said) if " done" in line)
    assert runner.invoke(app, ["list", "presets"]).output.startswith("quick")


def test_report_names_a_run_that_it_left_out(tmp_path):
    asked = ["examine", TINY, "--images", "8", "--probe", "variance", "--out", f"{tmp_path}/run"]
    assert runner.invoke(app, asked).exit_code == 0
    from retinoscope.run.folder import RunFolder

    RunFolder(tmp_path / "empty").close()
    page = tmp_path / "page.html"
    made = runner.invoke(app, ["report", f"{tmp_path}/run", f"{tmp_path}/empty", "-o", f"{page}"])
    assert made.exit_code == 0, made.output
    assert f"Left out: {tmp_path}/empty: nothing has been measured in it yet" in made.stderr
    assert f"{tmp_path}/empty</bdi> is left out" in page.read_text()
