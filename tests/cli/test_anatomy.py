import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retinoscope import Anatomy
from retinoscope.cli.main import app, main
from retinoscope.core.errors import WrongInput

runner = CliRunner()


def test_table_json_and_picture(tmp_path):
    result = runner.invoke(
        app,
        [
            "anatomy",
            "test_resnet",
            "--save",
            f"{tmp_path}/a.json",
            "--picture",
            f"{tmp_path}/a.svg",
        ],
    )
    assert result.exit_code == 0, result.output
    assert "test_resnet — untrained, seed 0 — 160×160 px" in result.output
    assert "layer2.0" in result.output
    assert "1 stem, 4 conv, 1 head" in result.output
    saved = Anatomy.from_json((tmp_path / "a.json").read_text())
    assert saved.sketch == "C|C↓|C↓|C↓"
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_several_models_are_saved_beside_each_other(tmp_path):
    result = runner.invoke(
        app,
        ["anatomy", "test_resnet", "test_vit", "--size", "160x160", "--save", f"{tmp_path}/a.json"],
    )
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.test_resnet.json", "a.test_vit.json"]


def test_shares_of_flops_add_up(tmp_path):
    result = runner.invoke(app, ["anatomy", "test_vit"], env={"COLUMNS": "120"})
    shares = [
        float(line.split()[-2])
        for line in result.output.splitlines()
        if line.rstrip().endswith("%")
    ]
    assert len(shares) == 14
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))  # each rounded to 0.1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["resnet51"], "timm has no model 'resnet51'"),
        (["test_vit", "--size", "0"], "--size 0 has no pixels: height and width are 1 or more"),
        (["test_vit", "--size", "0x32"], "--size 0x32 has no pixels"),
        (["test_vit", "--size", "large"], "'large' is no image size. Write 224, or 224x160"),
        (["test_vit", "--picture", "a.doc"], "must end in .svg, .png, .pdf"),
        (["test_vit", "--weights", "none.pth"], "There is no file '"),
    ],
)
def test_mistakes_end_in_one_paragraph_and_exit_code_2(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["retinoscope", "anatomy", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.startswith("Error ")
    assert says in shown
    assert "Traceback" not in shown


def test_help_teaches():
    text = " ".join(runner.invoke(app, ["anatomy", "--help"]).output.split())
    for word in ("torchvision:NAME", "path/file.py:function", "--picture", "needs no weights"):
        assert word in text
    assert runner.invoke(app, ["--version"]).output.startswith("retinoscope 0.")


def test_neither_import_nor_help_waits_for_torch():
    """What makes them slow is importing torch, so that is what is tested, not seconds."""
    code = (
        "import sys, retinoscope\n"
        "from retinoscope.cli.main import app\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['examine', '--help']).exit_code == 0\n"
        "heavy = {'torch', 'timm', 'matplotlib', 'networkx', 'transformers'}\n"
        "assert heavy.isdisjoint(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_the_package_offers():
    import retinoscope

    for name in retinoscope.__all__:
        assert getattr(retinoscope, name).__name__ == name
    assert set(retinoscope.__all__) <= set(dir(retinoscope))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = retinoscope.nothing


def test_a_size_that_is_none():
    from retinoscope.cli.anatomy_table import saved_as
    from retinoscope.cli.options import parse_size

    with pytest.raises(WrongInput):
        parse_size("3x")
    assert saved_as(Path("x/a.json"), "../../etc/passwd.py:f", 2).parent == Path("x")
