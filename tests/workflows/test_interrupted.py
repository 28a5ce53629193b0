"""Ctrl-C at any moment leaves a page that says what is unfinished."""

import pytest
from PIL import Image

from retinoscope.run import run as running
from retinoscope.run.shared_pass import SharedPass
from retinoscope.workflows import examine as examining
from retinoscope.workflows.examine import examine
from run.elsewhere import TINY

MODELS = [f"first={TINY}", f"second={TINY}"]
PROBES = ["fourier", "variance"]
IMAGES = 200  # two pieces of each pass

# Where it is interrupted, and at which call; the two models have two passes and two pieces each.
MOMENTS = [
    (examining, "load_subject", 1),
    (examining, "load_subject", 2),
    (running, "check_deterministic", 1),
    (running, "estimate", 2),
    (examining, "say_forecast", 1),
    (SharedPass, "measure", 12),
    (running, "write_piece", 1),
    (running, "write_piece", 3),
    (running, "write_note", 1),
    (running, "write_note", 4),
    (examining, "build_report", 2),
]


def interrupt(monkeypatch, where, name, number):
    """Press Ctrl-C at the given call of a function."""
    real, calls = getattr(where, name), []

    def pressed(*arguments, **settings):
        calls.append(name)
        if len(calls) == number:
            raise KeyboardInterrupt
        return real(*arguments, **settings)

    monkeypatch.setattr(where, name, pressed)


@pytest.mark.parametrize(("where", "name", "number"), MOMENTS)
def test_ctrl_c_leaves_a_page_that_says_what_is_unfinished(
    tmp_path, monkeypatch, where, name, number
):
    asked = {"probes": PROBES, "images": IMAGES, "out": tmp_path, "command": ["examine", "it"]}
    with monkeypatch.context() as patched:
        interrupt(patched, where, name, number)
        with pytest.raises(KeyboardInterrupt):
            examine(MODELS, **asked)
    page = (tmp_path / "report.html").read_text()
    assert "<strong>Unfinished.</strong>" in page
    assert "go on with: <code>examine it</code>" in page
    measured = bool(list(tmp_path.rglob("*.note.json")))
    assert ("Nothing has been measured yet" in page) is not measured
    assert "not applicable" not in page
    if number == 3:  # a few suffice: going on is tested elsewhere
        done = examine(MODELS, **asked)
        assert done.measured == 4
        page = done.report.read_text()
        assert "Unfinished" not in page
        assert "unfinished" not in page


def test_the_page_counts_the_pieces_that_are_there(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        interrupt(patched, running, "write_piece", 2)
        with pytest.raises(KeyboardInterrupt):
            examine(TINY, probes=["variance"], images=300, out=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "unfinished, 1 of 3" in page


def test_what_was_not_applicable_and_is_now_unfinished_is_called_unfinished(tmp_path, monkeypatch):
    photos, run = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    for index in range(4):
        Image.new("RGB", (20, 20), (index * 9, 0, 0)).save(photos / f"{index}.png")
    asked = {"probes": ["hessian:batch=4"], "out": run}
    done = examine(f"it={TINY}", str(photos), **asked)
    assert done.measured == 0
    assert "not applicable" in done.report.read_text()
    with monkeypatch.context() as patched:
        interrupt(patched, running, "write_piece", 2)
        with pytest.raises(KeyboardInterrupt):
            examine(f"it={TINY}", "cues", images=12, **asked)
    page = (run / "report.html").read_text()
    assert "unfinished, 1 of 3" in page
    assert "not applicable" not in page
