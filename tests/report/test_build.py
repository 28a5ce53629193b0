import errno
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from retinoscope.cli.main import app
from retinoscope.core.errors import NotApplicable, RetinoscopeError, UnreadableFile
from retinoscope.core.result import seal
from retinoscope.core.wording import number
from retinoscope.data.augment import Augmentation
from retinoscope.figures.describe import figures
from retinoscope.figures.figure import Line, Lines, Point
from retinoscope.figures.scale import ticks
from retinoscope.probes.variance import Variance
from retinoscope.report.build import build_report
from retinoscope.report.collect import collect
from retinoscope.report.downloads import as_json
from retinoscope.report.svg import svg
from retinoscope.run.subject import load_subject


def test_the_same_folder_gives_the_same_page(measured, tmp_path):
    one, two = (build_report([measured], tmp_path / n).read_text() for n in ("1.html", "2.html"))
    assert one == two
    assert "tiny" in one
    assert "40 images of cues (test), not augmented, 16×16, float32, weight decay 0.0" in one


def test_several_folders_on_one_page(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "second")
    page = build_report([measured, tmp_path / "second"], tmp_path / "r.html").read_text()
    assert page.count('<article class="card">') == 4


def test_figures_hold_every_finite_value(measured):
    for subject in collect([measured]).examined:
        for one in subject.measured:
            result = one.result
            for figure in figures(result):
                drawn = [p.y for line in figure.chart.lines for p in line.points]
                finite = [y for y in drawn if np.isfinite(y)]
                values = getattr(result, figure.field)
                assert len(finite) == np.isfinite(values).sum()
                assert str(svg(figure.chart)).count("<circle") == len(finite)


def test_words_count_what_the_steps_say(measured):
    result = collect([measured]).examined[0].measured[1].result
    assert result.probe == "variance"
    place = result.kinds.index("conv")
    lowers = int(result.step[place] < 0)
    assert result.findings()[0].startswith(
        f"{lowers} of 1 conv units lower the variance (median step "
    )


def test_a_damaged_result_is_shown_as_such_and_the_rest_stands(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "run")
    broken = next((tmp_path / "run").rglob("variance.*.npz"))
    broken.write_bytes(b"PK nonsense")
    page = build_report([tmp_path / "run"], tmp_path / "r.html").read_text()
    assert "a file could not be read" in page
    assert "or the array file next to it is damaged" in page
    assert page.count('<td class="word">measured</td>') == 3


def test_an_old_schema_is_refused_by_name(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "run")
    for path in (tmp_path / "run").rglob("variance.*.npz"):
        plain = json.loads(path.with_suffix(".json").read_text()) | {"schema": 0}
        del plain["sha256"]
        plain["sha256"] = seal(plain, path.read_bytes())
        path.with_suffix(".json").write_text(json.dumps(plain))
    (first, _) = collect([tmp_path / "run"]).examined
    assert (
        "contains variance of schema 0, but this version reads variance of schema 1"
        in (first.problems[0])
    )


def test_a_users_own_probe_has_its_section(tmp_path):
    """Its class is not known to the page; what the result says of itself is enough."""
    from probes.test_contract import Agreement
    from retinoscope.run.run import Run
    from run.tiny import build

    model = build().eval()
    subject = load_subject(
        model, "cues", name="a", size=(16, 16), images=20, others={"a": model},
        augmentation=Augmentation(mixup=0.5),
    )  # fmt: skip
    Run(tmp_path / "run").measure(Agreement("a"), subject)
    page = build_report(tmp_path / "run").read_text()
    assert "Do two models agree?" in page
    assert "Equal answers" in page
    assert page.count("<circle") == 1


def test_panels_under_different_protocols_say_so(tmp_path):
    from retinoscope.run.run import Run
    from run.tiny import build

    run = Run(tmp_path / "run")
    for side in (16, 24):
        subject = load_subject(build().eval(), "cues", name="same", size=(side, side), images=9)
        run.measure(Variance(), subject)
    page = build_report(tmp_path / "run").read_text()
    assert page.count("not augmented, 16×16, float32") == 2  # under each of its two figures
    assert page.count("not augmented, 24×24, float32") == 2
    names = {line for line in page.split("<bdi>") if line.startswith("same (")}
    assert any("16×16)" in name for name in names)
    assert any("24×24)" in name for name in names)


def test_infinite_values_do_not_stop_the_page(measured, tmp_path):
    from dataclasses import replace

    result = collect([measured]).examined[0].measured[1].result
    broken = replace(result, variance=np.full_like(result.variance, np.inf))
    assert json.loads(as_json(broken))["variance"] == [None] * len(result.variance)
    assert "<circle" not in svg(figures(broken)[0].chart)


@pytest.mark.parametrize("harm", [b"", b"\xff\xfe", b"[]", b"{}"])
@pytest.mark.parametrize("which", ["subject.json", "anatomy.json", "*.note.json", "order.json"])
def test_damaged_small_files_are_shown_and_the_rest_stands(measured, tmp_path, which, harm):
    shutil.copytree(measured, tmp_path / "run")
    (tmp_path / "run" / "order.json").write_text("[]")
    next((tmp_path / "run").rglob(which)).write_bytes(harm)
    page = build_report(tmp_path / "run").read_text()
    assert page.count("<svg") >= 7  # five figures of the other model, two pictures
    if which in ("subject.json", "anatomy.json"):
        assert "a file could not be read" in page


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.mkdir(), "is not a run folder: it has neither run.json"),
        (
            lambda path: (path.mkdir(), (path / "run.json").write_text('{"retinoscope run": 1}')),
            "Nothing has been measured",
        ),
    ],
)
def test_folders_that_hold_nothing(tmp_path, make, says):
    make(tmp_path / "x")
    with pytest.raises(UnreadableFile, match=says):
        build_report([tmp_path / "x"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written_is_said(measured, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(RetinoscopeError, match="The report cannot be written to"):
        build_report([measured], tmp_path / "folder")


def test_a_full_disk_is_said(measured, tmp_path, monkeypatch):
    def write(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("retinoscope.report.build.write_atomically", write)
    with pytest.raises(RetinoscopeError, match=r"the disk is full\. Free some space"):
        build_report([measured], tmp_path / "r.html")


def test_json_for_others_has_null_for_what_is_no_number(measured):
    result = collect([measured]).examined[0].measured[0].result
    plain = json.loads(as_json(result))
    assert plain["high_step"][0] is None
    assert plain["high"][1] == pytest.approx(result.high[1])


def test_unlabelled_and_not_applicable_are_told_apart(tmp_path, measured):
    """A probe that needs labels, on images that have none: said, never dropped."""
    from dataclasses import dataclass

    from retinoscope.run.run import Run

    @dataclass(frozen=True)
    class Labelled(Variance):
        @property
        def needs(self):
            from retinoscope import Needs

            return Needs(labels=True)

    photos = tmp_path / "photos"
    photos.mkdir()
    from PIL import Image

    for place in range(3):
        pixels = np.random.default_rng(place).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{place}.png")
    (photos / "broken.png").write_bytes(b"not a png")
    from run.tiny import build

    subject = load_subject(build().eval(), str(photos), name="tiny", size=(16, 16))
    run = Run(tmp_path / "run")
    answers = run.measure_all([Labelled()], subject)
    assert isinstance(answers["variance"], NotApplicable)
    with pytest.raises(NotApplicable, match="needs labels; these images have no labels"):
        run.measure(Labelled(), subject)
    found = run.measure(Variance(), subject)
    assert found.images == 3
    page = build_report([tmp_path / "run"], tmp_path / "r.html").read_text()
    assert "it needs labels; these images have no labels" in page
    assert "not applicable" in page
    assert "1 image could not be read" in page
    assert "broken.png" in page


def test_report_command(measured, tmp_path):
    result = CliRunner().invoke(app, ["report", str(measured), "-o", f"{tmp_path}/page.html"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_charts_of_nothing_and_of_one_point():
    nothing = svg(Lines([Line([Point(0, float("nan"))])], "x", "y"))
    assert "<circle" not in nothing
    one = svg(Lines([Line([Point(0.5, 3.0, label="3")])], "x", "y"))
    assert str(one).count("<circle") == 1
    assert "nan" not in str(nothing) + str(one)
    assert ticks(0, 0) == []
    assert number(0.0) == "0"


@pytest.fixture
def trained(tmp_path):
    """A training folder: the two files, the anatomy and a snapshot."""
    from safetensors.torch import save_file

    from retinoscope import dissect
    from run.tiny import build
    from train.by_hand import write_training

    folder = write_training(tmp_path / "training")
    (folder / "anatomy.json").write_text(dissect(build().eval(), 16).to_json())
    (folder / "snapshots").mkdir()
    save_file(build().state_dict(), folder / "snapshots" / "end.safetensors")
    return folder


def _cells(page, title):
    """The numbers below the figure of that title."""
    body = page.split(f"<h3>{title}")[1].split("<tbody>")[1].split("</tbody>")[0]
    rows = [row.split("<td>")[1:] for row in body.split("<tr>")[1:]]
    return [tuple(cell.split("<")[0] for cell in row) for row in rows]


def test_a_training_folder_is_a_report_of_its_own(trained, tmp_path):
    result = CliRunner().invoke(app, ["report", str(trained), "-o", f"{tmp_path}/page.html"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    assert "a file could not be read" not in page
    assert "<bdi>tiny</bdi>" in page
    assert page.count('<article class="card">') == 1
    assert "How did it learn?" in page
    assert page.count('class="chart"') == 4
    assert _cells(page, "Negative log-likelihood") == [
        ("train", "1", "2.137"), ("train", "2", "1.839"), ("train", "3", "1.713"),
        ("test", "0", "2.314"), ("test", "1", "1.977"), ("test", "2", "1.552"),
        ("test", "3", "1.224"),
    ]  # fmt: skip
    assert _cells(page, "Accuracy on test data")[-1] == ("3", "0.5867")
    assert _cells(page, "Learning rate")[2] == ("2", "0.125")
    assert "3840 images of cues (train), crop 0.125, flip True, mixup 0.8, smoothing 0.1" in page
    assert "weight decay 0.05, batch 96, seed 7; recipe micro, 2 of warm-up, then 1 epochs" in page
    assert "tested on 1000 images of test" in page
    assert "optimiser adamw" in page
    assert "float32, batches of 96" in page


def test_the_end_of_the_warm_up_and_the_names_of_the_curves_are_seen(trained):
    (subject,) = collect([trained]).examined
    nll, *rest = figures(subject.measured[0].result)
    assert [line.name for line in nll.chart.lines] == ["train", "test"]
    assert len({line.colour for line in nll.chart.lines}) == 2
    for figure in (nll, *rest):
        drawn = str(svg(figure.chart))
        assert drawn.count(">end of warm-up</text>") == 1
        (mark,) = [part for part in drawn.split("<line")[1:] if 'class="mark"' in part]
        x = mark.split('x1="')[1].split('"')[0]
        assert f'cx="{x}"' in drawn  # where the points of epoch 2 are
        assert (">train</text>" in drawn, ">test</text>" in drawn) == (figure is nll,) * 2


def test_what_was_not_tested_has_no_figure_and_no_name(trained):
    from train.by_hand import ROWS, write_training

    none = dict.fromkeys(("accuracy", "nll", "ece", "images"))
    write_training(trained, [row | none for row in ROWS])
    (subject,) = collect([trained]).examined
    drawn = figures(subject.measured[0].result)
    assert [figure.field for figure in drawn] == ["nll", "lr"]
    assert ">test</text>" not in svg(drawn[0].chart)
    assert ">train</text>" in svg(drawn[0].chart)


def test_trainings_and_runs_side_by_side(trained, measured, tmp_path):
    from train.by_hand import ROWS, write_training

    second = shutil.copytree(trained, tmp_path / "second")
    write_training(second, ROWS[:3], seed=8, lr=0.5)
    third = shutil.copytree(trained, tmp_path / "third")
    write_training(third, ROWS[:1], seed=9)
    page = build_report([trained, measured, second, third], tmp_path / "r.html").read_text()
    assert page.count('<article class="card">') == 5
    assert page.count('<section id="training-') == 1  # all recipes in one section
    section = page.split('<section id="training-')[1].split("</section>")[0]
    assert section.count("<figcaption>") == 4 * 3
    assert "tiny (recipe micro, seed 7, 3 of 3 epochs, 16×16)" in page
    assert "tiny (recipe micro, seed 8, 2 of 3 epochs, 16×16)" in page
    assert page.count("not finished: 2 of 3 epochs") == 1
    assert page.count("not finished: 3 of 3 epochs") == 0
    warned = page.split("Untrained weights.")[1].split("</p>")[0]
    assert "seed 9, 0 of 3 epochs" in warned
    assert "seed 8" not in warned


@pytest.mark.parametrize("which", ["log.jsonl", "training.json", "anatomy.json"])
@pytest.mark.parametrize("harm", [b"", b"\xff\xfe", b"[]", b"{}"])
def test_a_damaged_training_is_said_and_the_rest_stands(trained, measured, tmp_path, which, harm):
    (trained / which).write_bytes(harm)
    page = build_report([trained, measured], tmp_path / "r.html").read_text()
    assert page.count("a file could not be read") == 1
    assert page.count('<td class="word">measured</td>') == 4 + (which == "anatomy.json")
    build_report(trained)  # nor does it end the report of the training alone


def test_an_examined_snapshot_carries_its_curves(trained, tmp_path):
    from retinoscope.run.run import Run
    from run.elsewhere import TINY

    snapshot = str(trained / "snapshots" / "end.safetensors")
    subject = load_subject(TINY, "cues", images=20, weights=snapshot)
    run = Run(tmp_path / "run")
    run.measure(Variance(), subject)
    run.files.close()
    shutil.rmtree(trained)  # the run folder is enough
    page = build_report(tmp_path / "run").read_text()
    assert "How did it learn?" in page
    assert _cells(page, "Accuracy on test data")[1] == ("1", "0.2718")
    assert page.count('<td class="word">measured</td>') == 2
    next((tmp_path / "run").rglob("log.jsonl")).write_text("{")
    page = build_report(tmp_path / "run").read_text()
    assert "a file could not be read" in page
    assert "Line 1 of" in page
    assert page.count('<td class="word">measured</td>') == 1
