"""What a run says where something is wrong with a network, a probe or its result."""

import io
import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from retinoscope.core.errors import EmptyResult, NotApplicable, RetinoscopeError
from retinoscope.core.probe import Needs, Piece
from retinoscope.core.result import Result, answer, axes
from retinoscope.models.checkpoint import state_hash
from retinoscope.probes import parse_probe
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.hessian import Hessian
from retinoscope.probes.variance import Variance
from retinoscope.run.estimate import estimate
from retinoscope.run.progress import Reporter
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY


def heard(folder, **options):
    """A run, and what it says."""
    said = io.StringIO()
    return Run(folder, reporter=Reporter(Console(file=said, width=500)), **options), said


def with_nan_after(subject, name):
    """The subject with NaN in the bias of one of its convolutions."""
    with torch.no_grad():
        subject.backbone.get_parameter(name).fill_(float("nan"))
    return replace(subject, state=state_hash(subject.backbone))


def notes(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("*.note.json"))]


def test_the_first_unit_that_is_not_finite_is_named_loudly(tiny, tmp_path):
    run, said = heard(tmp_path)
    run.measure(Variance(), with_nan_after(tiny(images=8), "down.bias"))
    warning = "the state of unit 'down' is NaN or infinite for 4 of 4 images"
    assert f"WARNING: {tiny().name}: {warning}" in said.getvalue()
    (note,) = notes(tmp_path)
    assert warning in note["warnings"][0]


def test_a_result_without_a_finite_number_is_an_error_and_no_result(tiny, tmp_path):
    run, said = heard(tmp_path)
    subject = with_nan_after(tiny(images=8), "stem.bias")
    with pytest.raises(EmptyResult, match=r"every measured value is NaN or infinite.*unit 'stem'"):
        run.measure(Variance(), subject)
    assert "variance failed: found no finite number" in said.getvalue()
    assert not notes(tmp_path)
    (skipped,) = tmp_path.rglob("*.skipped.json")
    assert json.loads(skipped.read_text())["status"] == "failed"
    assert not list(tmp_path.rglob("*.unfinished.json"))


@answer
class NothingResult(Result):
    """Values that are not there."""

    probe: ClassVar[str] = "nothing"
    found: np.ndarray = axes("number", unit="of things")


@dataclass(frozen=True)
class Nothing:
    """A probe that finds nothing, or fails."""

    result: ClassVar[type[Result]] = NothingResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Is there nothing?"
    reading: ClassVar[str] = ""
    fails: bool = False

    @property
    def needs(self):
        return Needs()

    def pieces(self, subject):
        return [Piece("0000000"), Piece("0000128")]  # named like those of the shared pass

    def measure(self, subject, piece, context):
        if self.fails:
            raise RetinoscopeError("The ruler is broken.")
        return {"number": np.zeros(0)}

    def combine(self, anatomy, partials):
        return NothingResult(found=np.concatenate([one["number"] for one in partials]))


def test_an_empty_result_is_an_error(tiny, tmp_path):
    with pytest.raises(EmptyResult, match="measured nothing in"):
        Run(tmp_path).measure(Nothing(), tiny(images=8))


def test_a_probe_that_fails_does_not_stop_the_others(tiny, tmp_path):
    run, said = heard(tmp_path)
    with pytest.raises(RetinoscopeError, match="The ruler is broken"):
        run.measure_all([Nothing(fails=True), Variance()], tiny(images=8))
    assert "nothing failed: The ruler is broken." in said.getvalue()
    assert "variance done" in said.getvalue()
    assert len(notes(tmp_path)) == 1


def test_probes_of_one_pass_say_that_they_share_its_time(tiny, tmp_path):
    run, said = heard(tmp_path)
    run.measure_all([Fourier(), Variance()], tiny(images=8))
    lines = [line for line in said.getvalue().splitlines() if " done" in line]
    assert len(lines) == 1
    assert "fourier, variance done in one pass, 1 of 1 pieces in" in lines[0]
    first, second = notes(tmp_path)
    assert (first["shared"], second["shared"]) == (["variance"], ["fourier"])
    assert first["seconds"] == second["seconds"]
    alone = tmp_path / "alone"
    Run(alone).measure(Variance(), tiny(images=8))
    assert notes(alone)[0]["shared"] == []


def test_pieces_of_one_name_are_counted_for_each_probe(tiny, tmp_path):
    subject, fewer = tiny(images=200), Variance()
    Run(tmp_path).measure(fewer, subject)
    for path in (*tmp_path.rglob("0000128.piece"), *tmp_path.rglob("*.note.json")):
        path.unlink()
    run, said = heard(tmp_path)
    with pytest.raises(EmptyResult):
        run.measure_all([fewer, Nothing()], subject)
    # One piece of variance is there; both of the other probe, which have the same names, are not.
    assert f"{subject.name}: 1 pieces are already measured" in said.getvalue()


def test_a_probe_of_the_loss_without_training_images_names_the_setting_that_works(tmp_path):
    for index in range(20):
        folder = tmp_path / "photos" / f"class{index % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (index, 9, 9)).save(folder / f"{index}.png")
    subject = load_subject(TINY, str(tmp_path / "photos"))
    with pytest.raises(NotApplicable, match=r"needs the split 'train'") as error:
        Run(tmp_path / "run").measure(Hessian(batch=4, batches=1), subject)
    text = str(error.value)
    assert text.endswith("--probe hessian:batch=4,batches=1,images=test")
    found = Run(tmp_path / "run").measure(parse_probe(text.rpartition(" ")[2]), subject)
    assert np.isfinite(found.eigenvalues).all()


def test_the_estimate_of_a_shared_pass_grows_with_its_images_and_falls_with_workers(tiny, tmp_path):
    few, many = (
        Run(tmp_path / str(n)).plan([Variance()], tiny(images=n)).passes[0] for n in (20, 2000)
    )
    assert 0 < few.seconds < many.seconds
    (job,) = many.jobs
    alone, eight = (
        estimate([job], tiny(images=2000), workers, print).seconds for workers in (1, 8)
    )
    assert eight < alone / 2
    assert (
        Run(tmp_path / "2").plan([Variance()], tiny(images=20), trials=False).passes[0].seconds
        is None
    )
    Run(tmp_path / "20").measure(Variance(), tiny(images=20))
    assert Run(tmp_path / "20").plan([Variance()], tiny(images=20)).passes == []


@pytest.mark.parametrize(
    ("model", "probe", "says"),
    [
        (
            "micro_vit:num_classes=0",
            "hessian",
            r"needs labels; these images have no labels, and the network has no classifier",
        ),
        ("micro_vit:num_classes=0", "accuracy", r"no classifier: its output is 48 features"),
        ("micro_vit", "hessian", r"needs labels; these images have no labels. Sort them into"),
        ("micro_vit", "trajectory", r"needs the snapshots of a training; the weights of micro_vit"),
    ],
)
def test_the_deciding_reason_is_named(tmp_path, model, probe, says):
    for index in range(4):
        Image.new("RGB", (16, 16), (index, 9, 9)).save(tmp_path / f"{index}.png")
    subject = load_subject(model, str(tmp_path), pretrained=False)
    with pytest.raises(NotApplicable, match=says):
        Run(tmp_path / "run").measure(parse_probe(probe), subject)
