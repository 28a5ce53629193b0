"""What the page says of each model before any figure."""

import re

import pytest

from retinoscope.probes.accuracy import Accuracy
from retinoscope.probes.variance import Variance
from retinoscope.report.build import build_report
from retinoscope.report.cards import accuracy
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


def test_no_column_for_what_nobody_measured(measured, tmp_path):
    page = build_report([measured], tmp_path / "r.html").read_text()
    assert "<th>accuracy</th>" not in page
