"""The worked examples of docs/extending.md, as they stand there: one file each, nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from typer.testing import CliRunner

import retinoscope
from retinoscope.cli.main import app
from retinoscope.core.catalogue import load_file
from retinoscope.data.views import Corrupted
from retinoscope.probes import parse_probe
from retinoscope.run.engines.processes import InProcesses
from retinoscope.run.run import Run, measure
from retinoscope.run.subject import load_subject

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text("utf-8")
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.S))
TINY = f"{Path(__file__).parents[1] / 'run' / 'tiny.py'}:build:img_size=16"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """All files of the page, in a folder of their own, which is the working folder."""
    for name, content in FILES.items():
        path = tmp_path / Path(name).name
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def page_of(folder):
    return (folder / "report.html").read_text()


def test_the_page_has_an_example_of_each():
    assert list(FILES) == [
        "effective_rank.py", "fragility.py", "rank_matrix.py", "surgery/scale_branches.py",
        "squares.py", "cli/sketch.py",
    ]  # fmt: skip


def test_a_watcher_has_its_section_figure_and_sentences_and_resumes(files):
    probe = "./effective_rank.py:EffectiveRank"
    out = files / "run"
    run("examine", TINY, "--probe", probe, "--images", 150, "--out", out)
    page = page_of(out)
    assert "How many directions do the positions of a map span?" in page
    assert "positions span fewest directions after" in page
    assert "Directions that positions span, by depth" in page
    assert 'class="chart' in page
    pieces = sorted(out.rglob("pieces/effective_rank.*/*.piece"))
    assert len(pieces) == 2
    kept = pieces[1].stat().st_mtime_ns
    (result,) = out.rglob("effective_rank.*.npz")
    before = result.read_bytes()
    pieces[0].unlink()
    run("examine", TINY, "--probe", probe, "--images", 150, "--out", out)
    assert pieces[1].stat().st_mtime_ns == kept
    assert result.read_bytes() == before


def test_an_edited_file_is_measured_anew(files):
    subject = load_subject(TINY, "cues", images=5)
    path = files / "effective_rank.py"
    run = Run(files / "run")
    before = run.measure(parse_probe(f"{path}:EffectiveRank"), subject)
    path.write_text(path.read_text().replace("/ most", "/ (2 * most)"))
    after = run.measure(parse_probe(f"{path}:EffectiveRank"), subject)
    np.testing.assert_allclose(after.rank, before.rank / 2)


@torch.no_grad()
def test_a_watchers_numbers_are_those_of_a_naive_twin(files):
    subject = load_subject(TINY, "cues", images=5)
    found = measure(parse_probe("./effective_rank.py:EffectiveRank"), subject)
    (batch,) = subject.splits["test"].batches(range(5), 5)
    for state in subject.replay.walk(batch.images):
        if state.unit.name not in found.units:
            continue
        each = []
        for maps in state.maps.double().numpy():
            rows = maps.reshape(len(maps), -1).T
            values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
            share = values[values > 0] / values.sum()
            most = min(len(rows) - 1, rows.shape[1])
            each.append(np.exp(-(share * np.log(share)).sum()) / most)
        rank = found.rank[found.units.index(state.unit.name)]
        np.testing.assert_allclose(rank, np.mean(each), rtol=1e-6)


@pytest.mark.proof
def test_it_divides_over_processes(files):
    subject = load_subject(TINY, "cues", images=150)
    probe = parse_probe(f"{files}/effective_rank.py:EffectiveRank")
    one = Run(files / "one").measure(probe, subject)
    two = Run(files / "two", engine=InProcesses(2)).measure(probe, subject)
    np.testing.assert_allclose(two.rank, one.rank, rtol=1e-6)


@pytest.mark.proof
def test_it_runs_on_ray(files):
    pytest.importorskip("ray")
    from retinoscope.run.engines.ray import OnRay

    subject = load_subject(TINY, "cues", images=150)
    probe = parse_probe(f"{files}/effective_rank.py:EffectiveRank")
    one = Run(files / "one").measure(probe, subject)
    ray = Run(files / "ray", engine=OnRay("local")).measure(probe, subject)
    np.testing.assert_allclose(ray.rank, one.rank, rtol=1e-6)


@torch.no_grad()
def test_a_probe_over_corrupted_images(files):
    subject = load_subject("micro_resnet", "cues", images=40)
    found = measure(parse_probe("./fragility.py:Fragility:severity=5"), subject)
    split = subject.splits["test"].viewed(Corrupted("impulse_noise", 5)).known()
    (batch,) = split.batches(range(40), 40)
    right = (subject.model(batch.images).argmax(1) == batch.labels).double().mean()
    assert found.accuracy[found.types.index("impulse_noise")] == pytest.approx(right.item())
    assert found.clean > found.accuracy.min()
    assert "hurts most" in found.findings()[0]


def test_a_figure_is_one_field(files):
    out = files / "run"
    run("examine", TINY, "--probe", "./rank_matrix.py:RankMatrix", "--images", 20, "--out", out)
    page = page_of(out)
    assert "Differences of rank between units" in page
    assert page.count('class="chart heat matrix"') == 1
    subject = load_subject(TINY, "cues", images=20)
    found = measure(parse_probe("./rank_matrix.py:RankMatrix"), subject)
    np.testing.assert_allclose(found.apart, found.rank[:, None] - found.rank)
    axes = retinoscope.plot(found, field="apart")
    assert axes.collections[0].get_array().size == found.apart.size


@torch.no_grad()
def test_a_surgery_is_one_file(files, monkeypatch, order_one):
    import retinoscope.surgery as room

    monkeypatch.setattr(room, "__path__", [*room.__path__, str(files)])
    monkeypatch.delitem(sys.modules, "retinoscope.surgery.scale_branches", raising=False)
    model = order_one("micro_vit")
    images = torch.rand(2, 3, 32, 32)
    before = model(images)
    assert torch.equal(retinoscope.operate(model, "scale_branches:by=1")(images), before)
    halved = retinoscope.operate(model, "scale_branches:by=0.5")
    assert torch.equal(model(images), before)
    for block in model.blocks:
        block.mlp.fc2.weight.mul_(0.5)
        block.mlp.fc2.bias.mul_(0.5)
    torch.testing.assert_close(halved(images), model(images), rtol=1e-4, atol=1e-4)
    assert (halved(images) - before).abs().max() > 0.01
    assert "scale_branches" in room.list_surgeries()


def test_a_data_source_is_one_file(files):
    out = files / "run"
    data = "./squares.py:build:count=30"
    run("examine", TINY, "--data", data, "--images", "all", "--probe", "variance", "--out", out)
    (note,) = out.rglob("variance.*.note.json")
    result = note.with_name(note.name.replace(".note", ""))
    protocol = json.loads(result.read_text())["protocol"]
    assert (protocol["images"], protocol["split"], protocol["data"]) == (30, "test", data)
    subject = load_subject(TINY, data, images=None)
    assert list(subject.splits) == ["train", "test"]
    assert (
        subject.origin.another(TINY).splits["test"].fingerprint
        == subject.splits["test"].fingerprint
    )


@pytest.mark.parametrize(("data", "says"), [
    ("./squares.py", "names a file but no function"),
    ("./squares.py:bild", "has no function 'bild'. Did you mean 'build'"),
    ("./squares.py:build:count=x", "build fails: "),
    ("./nothing.py:build", "There is no file './nothing.py'"),
])  # fmt: skip
def test_a_data_source_that_is_not_there(files, data, says):
    with pytest.raises(retinoscope.RetinoscopeError, match=re.escape(says)):
        load_subject(TINY, data)


def test_a_command_is_one_file_and_its_name(files):
    import typer

    command = typer.Typer()
    command.command()(load_file(files / "sketch.py").sketch)
    done = CliRunner().invoke(command, ["micro_vit"])
    assert done.exit_code == 0, done.output
    expected = retinoscope.dissect(timm.create_model("micro_vit"), 32).sketch
    assert done.stdout.strip() == expected


def test_each_file_has_a_command_that_uses_it():
    assert len(re.findall(r"^retinoscope .*$", PAGE, re.M)) == len(FILES)


@pytest.mark.docs
def test_the_commands_of_the_page_run(files):
    for line in re.findall(r"^retinoscope (examine .*)$", PAGE, re.M):
        command = [sys.executable, "-m", "retinoscope", *line.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Report: " in done.stdout
