"""What the page says of each model before any figure."""

import json
import re

import pytest

from retinoscope.data.augment import Augmentation
from retinoscope.probes.accuracy import Accuracy
from retinoscope.probes.hessian import Hessian
from retinoscope.probes.variance import Variance
from retinoscope.report.build import build_report
from retinoscope.report.cards import accuracy, assumed
from retinoscope.report.collect import collect
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from run.tiny import build


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Two models; the accuracy of one of them was measured."""
    folder = tmp_path_factory.mktemp("scored")
    run = Run(folder)
    for name, probes in (("tiny", [Accuracy(), Variance()]), ("other", [Variance()])):
        subject = load_subject(build().eval(), "cues", name=name, size=(16, 16), images=40)
        run.measure_all(probes, subject)
    run.files.close()
    return folder


def card_of(page: str, name: str) -> str:
    cards = re.findall(r'<article class="card">.*?</article>', page, re.DOTALL)
    (found,) = (card for card in cards if f"<bdi>{name}</bdi>" in card)
    return found


def test_accuracy_stands_in_the_card_and_in_the_table_at_the_top(scored, tmp_path):
    page = build_report([scored], tmp_path / "r.html").read_text()
    tiny = next(subject for subject in collect([scored]).examined if subject.name == "tiny")
    (said,) = accuracy(tiny)
    assert re.fullmatch(r"[\d.]+ % ± [\d.]+", said["right"])
    assert said["images"] == "40 images of cues"
    assert f"<strong>{said['right']}</strong> of 40 images of cues right" in card_of(page, "tiny")
    assert "images of cues right" not in card_of(page, "other")
    top = page[: page.index("<nav>")]
    assert f"<td>{said['right']}</td><td>{said['nll']}</td>" in top
    assert "<td>not measured</td>" in top


def test_preprocessing_stands_in_the_card_and_not_under_a_fold(scored, tmp_path):
    page = build_report([scored], tmp_path / "r.html").read_text()
    found = card_of(page, "tiny")
    assert "Images: 16×16 px, center crop, 1.0 of the shorter side, bicubic; mean 0.485" in found
    assert "std 0.229/0.224/0.225" in found
    assert "<details" not in found


@pytest.fixture(scope="module")
def curved(tmp_path_factory):
    """The Hessian on augmented images of a network of whose training nothing is known."""
    folder = tmp_path_factory.mktemp("curved")
    run = Run(folder)
    probe = Hessian(k=1, batch=4, batches=2, products=3)
    for name, augmentation in (("unknown", None), ("told", Augmentation(crop=0.25))):
        subject = load_subject(
            build().eval(), "cues", name=name, size=(16, 16), images=12, augmentation=augmentation
        )
        run.measure_all([probe, Variance()], subject)
    run.files.close()
    return folder


def test_an_assumed_augmentation_is_a_warning_in_the_card_and_in_the_notes(curved, tmp_path):
    page = build_report([curved], tmp_path / "r.html").read_text()
    words = "augmentation of training images: random crop and flip, because it is not known"
    assert words in card_of(page, "unknown")
    assert words not in card_of(page, "told")
    notes = [json.loads(path.read_text()) for path in curved.rglob("hessian.*.note.json")]
    said = [[text for text in note["notices"] if words in text] for note in notes]
    assert sorted(map(len, said)) == [0, 1]


def test_it_is_not_said_where_no_image_was_augmented(scored):
    first, second = collect([scored]).examined
    said = [*assumed(first), *assumed(second)]
    assert not any(text.startswith("augmentation of training") for text in said)
    assert any(text.startswith("augmentation of training") for text in first.protocol["assumed"])
    first.protocol["assumed"] = ["size 224×224: the network does not say it"]
    assert "size 224×224: the network does not say it" in assumed(first)


def test_random_weights_have_no_training_to_assume():
    subject = load_subject("micro_resnet", "cues", images=4, pretrained=False)
    assert subject.protocol["assumed"] == []
    assert load_subject("micro_resnet", "cues", images=4).protocol["assumed"] == []


def test_no_column_for_what_nobody_measured(measured, tmp_path):
    page = build_report([measured], tmp_path / "r.html").read_text()
    assert "<th>accuracy</th>" not in page
