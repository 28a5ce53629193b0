import errno
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from retinoscope import Needs, Piece, Result
from retinoscope.core.errors import NotApplicable, RetinoscopeError, RunFolderError, WrongInput
from retinoscope.core.result import answer
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.progress import Reporter
from retinoscope.run.run import Run, measure
from retinoscope.run.subject import load_subject

PROBES = (Fourier(), Variance())


class Listening(Reporter):
    """Remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.advanced = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def advance(self) -> None:
        self.advanced += 1


def contents(folder: Path) -> dict[str, str]:
    """What is measured, without the notes that hold times."""
    kept = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".note.json")]
    kept = [p for p in kept if p.name not in (".lock", "report.html")]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = {p: p.stat() for p in folder.rglob("*.piece")}
    return {p.name + p.parent.name: (s.st_mtime_ns, s.st_ino) for p, s in found.items()}


def test_a_result_is_written_with_its_protocol_and_read_back_equal(tiny, tmp_path):
    subject = tiny()
    found = Run(tmp_path).measure(Variance(), subject)
    (note,) = tmp_path.rglob("variance.*.note.json")
    stem = note.name.removesuffix(".note.json")
    assert type(found).load(note.parent, stem) == found
    protocol = json.loads(note.with_name(f"{stem}.json").read_text())["protocol"]
    assert protocol["images"] == 300
    assert protocol["split"] == "test"
    assert protocol["augmentation"] is None
    assert protocol["precision"] == "float32"
    assert {"torch", "timm", "retinoscope"} <= protocol["versions"].keys()
    assert protocol["settings"] == {}
    assert json.loads(note.read_text())["pieces"] == 3


def test_watchers_share_one_pass_and_what_is_there_is_not_done_again(tiny, tmp_path, monkeypatch):
    from retinoscope.anatomy.replay import Replay

    subject, passes = tiny(), []
    walk = Replay.walk
    monkeypatch.setattr(
        Replay,
        "walk",
        lambda self, batch, taps=(): passes.append(len(batch)) or walk(self, batch, taps),
    )
    first = Listening()
    both = Run(tmp_path, reporter=first).measure_all(PROBES, subject)
    assert first.advanced == 3  # of 128, 128 and 44 images
    assert sum(passes) == 300 + 2 * 4  # and four images twice, to see that they repeat
    passes.clear()
    second = Listening()
    again = Run(tmp_path, reporter=second).measure_all(PROBES, subject)
    assert (second.advanced, passes) == (0, [])
    assert again == both
    assert any("is already measured" in text for text in second.said)


def test_a_probe_that_comes_later_uses_only_its_own_pass(tiny, tmp_path):
    subject = tiny()
    run = Run(tmp_path)
    run.measure(Variance(), subject)
    before = stamps(tmp_path)
    run.measure_all(PROBES, subject)
    assert before.items() <= stamps(tmp_path).items()
    alone = measure(Fourier(), subject)
    assert alone == run.measure(Fourier(), subject)


def test_other_settings_stand_beside_and_share_nothing(tiny, tmp_path):
    subject = tiny()
    run = Run(tmp_path)
    plain, rings = (run.measure(Fourier(direction=d), subject) for d in ("diagonal", "radial"))
    assert not np.array_equal(plain.high, rings.high)
    assert len(list(tmp_path.rglob("fourier.*.note.json"))) == 2
    assert run.measure(Fourier(), subject) == plain


@pytest.mark.parametrize("harm", ["truncated", "flipped", "stale", "emptied", "garbage"])
def test_a_harmed_piece_is_noticed_redone_and_reported(tiny, tmp_path, harm):
    subject = tiny()
    whole = Run(tmp_path / "whole")
    expected = whole.measure_all(PROBES, subject)
    reference = contents(tmp_path / "whole")

    run = Run(tmp_path / "harmed")
    run.measure_all(PROBES, subject)
    first, second, *_ = sorted((tmp_path / "harmed").rglob("pieces/fourier.*/*.piece"))
    content = first.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) * 2 // 3] ^= 1
    first.write_bytes(
        {
            "truncated": content[: len(content) // 2],
            "flipped": bytes(flipped),
            "stale": second.read_bytes(),  # a whole piece, but another one
            "emptied": b"",
            "garbage": b"{}\n" + os.urandom(99),
        }[harm]
    )
    others = {k: v for k, v in stamps(tmp_path / "harmed").items() if first.name not in k}
    listening = Listening()
    again = Run(tmp_path / "harmed", reporter=listening).measure_all(PROBES, subject)
    assert again == expected
    assert contents(tmp_path / "harmed") == reference
    assert listening.advanced == 1
    word = "stale" if harm == "stale" else "damaged"
    assert any(f"piece 0000000 of fourier is {word}" in text for text in listening.said)
    assert others.items() <= stamps(tmp_path / "harmed").items()
    (note,) = (tmp_path / "harmed").rglob("fourier.*.note.json")
    assert word in json.loads(note.read_text())["redone"][0]


@pytest.mark.parametrize("bit", range(0, 2400, 97))
def test_no_flipped_bit_of_a_piece_goes_unnoticed(tiny, tmp_path, bit):
    from retinoscope.run.piece import BadPiece, Finished, read_piece, write_piece

    path = tmp_path / "0000000.piece"
    write_piece(path, "key", Finished({"a": np.arange(9.0)}, ()))
    content = bytearray(path.read_bytes())
    content[(bit // 8) % len(content)] ^= 1 << (bit % 8)
    path.write_bytes(bytes(content))
    with pytest.raises(BadPiece):
        read_piece(path, "key")


def test_a_damaged_result_is_combined_again_from_its_pieces(tiny, tmp_path):
    subject = tiny()
    expected = Run(tmp_path).measure(Variance(), subject)
    (arrays,) = tmp_path.rglob("variance.*.npz")
    arrays.write_bytes(arrays.read_bytes()[:-9])
    listening = Listening()
    again = Run(tmp_path, reporter=listening).measure(Variance(), subject)
    assert again == expected
    assert listening.advanced == 0
    assert any("damaged" in text and "combined again" in text for text in listening.said)


def test_a_damaged_note_or_subject_is_written_again(tiny, tmp_path):
    subject = tiny(images=20)
    expected = Run(tmp_path).measure(Variance(), subject)
    for pattern in ("*.note.json", "subject.json", "anatomy.json"):
        (path,) = tmp_path.rglob(pattern)
        path.write_bytes(b"\xff")
        assert Run(tmp_path).measure(Variance(), subject) == expected
        json.loads(path.read_text())


def test_changed_code_of_the_same_weights_has_another_key(tmp_path):
    source = (Path(__file__).parent / "tiny.py").read_text()
    found = []
    for number, activation in enumerate(("x = self.down(x).relu()", "x = self.down(x).tanh()")):
        changed = source.replace("x = self.down(x).relu()", activation)
        (tmp_path / "own.py").write_text(changed)
        subject = load_subject(f"{tmp_path / 'own.py'}:build:img_size=16", "cues", images=20)
        found.append(Run(tmp_path / "run").measure(Variance(), subject))
        assert len(list((tmp_path / "run").glob("*/subject.json"))) == number + 1
    assert found[0].variance[-1] != found[1].variance[-1]


def test_images_replaced_in_place_have_another_key(tiny, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    found = []
    for grey in (10, 200):
        for place in range(3):
            pixels = np.full((16, 16, 3), grey + place, np.uint8)
            pixels[:8] //= 2
            Image.fromarray(pixels).save(photos / f"{place}.bmp")
        subject = load_subject(tiny().origin.specification.model, str(photos))
        found.append(Run(tmp_path / "run").measure(Variance(), subject))
    assert found[0].variance[0] != found[1].variance[0]


def test_unreadable_names_and_nothing_readable(tiny, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    name = os.fsencode(photos) + b"/bad\xff.jpg"
    Path(os.fsdecode(name)).write_bytes(b"junk")
    subject = load_subject(tiny().origin.specification.model, str(photos))
    with pytest.raises(
        RetinoscopeError, match=r"None of the 1 images could be read. The first: bad"
    ):
        measure(Variance(), subject)
    Image.new("RGB", (16, 16)).save(photos / "good.png")
    found = measure(Variance(), load_subject(tiny().origin.specification.model, str(photos)))
    assert found.images == 1
    assert found.protocol["set aside"][0][0] == "bad\\udcff.jpg"


def test_a_network_without_maps_is_not_applicable(tmp_path):
    from torch import nn

    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 10))
    subject = load_subject(model.eval(), "cues", size=(8, 8), images=5)
    for probe in PROBES:
        with pytest.raises(
            NotApplicable, match="looks at feature maps; no unit of Sequential has any"
        ):
            Run(tmp_path).measure(probe, subject)


def test_what_is_no_probe_is_told_what_it_lacks(tiny, tmp_path):
    with pytest.raises(WrongInput, match=r"As a Watcher it lacks result.*watch, gather"):
        Run(tmp_path).measure(object(), tiny(images=3))


def test_one_probe_asked_twice_answers_twice(tiny, tmp_path):
    found = Run(tmp_path).measure_all([Fourier(bands=5), Fourier(bands=9)], tiny(images=9))
    assert [result.frequency.shape[1] for result in found.values()] == [5, 9]


def test_many_processes_may_start_in_a_new_folder_at_once(tmp_path):
    program = "import sys; from retinoscope.run.folder import RunFolder; RunFolder(sys.argv[1])"
    for round_ in range(3):
        started = [
            subprocess.Popen([sys.executable, "-c", program, str(tmp_path / str(round_))])
            for _ in range(4)
        ]
        assert [process.wait(60) for process in started] == [0] * 4


def test_weights_that_change_under_a_subject_are_noticed(tiny, tmp_path):
    import torch

    subject = tiny(images=20)
    with torch.no_grad():
        subject.backbone.stem.bias += 1
    with pytest.raises(RetinoscopeError, match="have changed since load_subject"):
        Run(tmp_path).measure(Variance(), subject)


def test_a_mark_that_appears_while_one_looks_is_no_obstacle(tmp_path, monkeypatch):
    real = Path.exists

    def exists(self, **more):
        if self.name == "run.json" and not real(self):
            self.write_text('{"retinoscope run": 1}')  # by another process, a moment later
            return False
        return real(self, **more)

    monkeypatch.setattr(Path, "exists", exists)
    Run(tmp_path)


def test_changed_weights_have_another_key(tiny, tmp_path):
    import torch

    subject = tiny(images=50)
    run = Run(tmp_path, reporter=(listening := Listening()))
    before = run.measure(Variance(), subject)
    with torch.no_grad():
        subject.backbone.stem.weight *= 1.1
    changed = load_subject(subject.backbone, "cues", name=subject.name, size=(16, 16), images=50)
    after = run.measure(Variance(), changed)
    assert not np.allclose(before.variance, after.variance)
    assert any("other version(s) of this model" in text for text in listening.said)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EROFS, "cannot be written to"),
        (errno.EIO, "cannot be used"),
    ],
)
def test_a_disk_that_refuses_is_explained_and_nothing_is_damaged(
    tiny, tmp_path, monkeypatch, code, says
):
    subject = tiny()
    expected = measure(Variance(), subject)
    run = Run(tmp_path)
    real, calls = os.fsync, []

    def refuse(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 5:  # subject, anatomy, what is unfinished and two pieces are written
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunFolderError, match=says) as error:
        run.measure(Variance(), subject)
    assert "before are kept" in str(error.value)
    monkeypatch.undo()
    assert len(list(tmp_path.rglob("*.piece"))) == 2
    assert not list(tmp_path.rglob("*.unfinished"))
    listening = Listening()
    assert Run(tmp_path, reporter=listening).measure(Variance(), subject) == expected
    assert listening.advanced == 1


def test_leftovers_of_a_killed_process_are_swept_but_not_those_of_a_living_one(tiny, tmp_path):
    run = Run(tmp_path)
    run.measure(Variance(), tiny(images=20))
    leftover = tmp_path / ".x.piece.abc.unfinished"
    leftover.write_bytes(b"half")
    Run(tmp_path)  # the first one still has the folder open
    assert leftover.exists()
    run.files.close()
    Run(tmp_path)
    assert not leftover.exists()


def test_fresh_starts_over_and_not_under_anothers_feet(tiny, tmp_path):
    subject = tiny(images=20)
    run = Run(tmp_path)
    run.measure(Variance(), subject)
    with pytest.raises(RunFolderError, match="is in use, by another process"):
        Run(tmp_path, fresh=True)
    run.files.close()
    again = Run(tmp_path, fresh=True)
    assert not list(tmp_path.rglob("*.piece"))
    again.measure(Variance(), subject)


def test_a_process_killed_before_its_mark_leaves_no_obstacle(tmp_path):
    (tmp_path / ".run.json.abc.unfinished").write_bytes(b"{")
    Run(tmp_path)
    assert (tmp_path / "run.json").is_file()
    assert not (tmp_path / ".run.json.abc.unfinished").exists()


def test_only_run_folders_are_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(RunFolderError, match="not empty and not a run folder"):
            Run(tmp_path, fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(RunFolderError, match="is a file"):
        Run(tmp_path / "thesis.tex")
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.json").write_text('{"retinoscope run": 99}')
    with pytest.raises(RunFolderError, match="made by another version"):
        Run(other)


@answer
class SumResult(Result):
    """What pieces made of what the first one gave."""

    probe: ClassVar[str] = "sum"
    total: int


@dataclass(frozen=True)
class Sum:
    """A probe whose pieces all build on the first."""

    result: ClassVar[type[Result]] = SumResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "How much is it?"
    reading: ClassVar[str] = ""
    slow: float = 0.0
    refuse: str = ""

    @property
    def needs(self):
        return Needs()

    def pieces(self, subject):
        return [Piece(f"{i}", {"add": i}) for i in range(3)]

    def seconds(self, subject, context):
        if self.refuse == "seconds":
            raise NotApplicable("needs what is not there")
        return self.slow

    def prepare(self, subject, context):
        if self.refuse == "base":
            raise NotApplicable("needs what is not there")
        assert not context.prepared
        return {"base": np.array(100)}

    def measure(self, subject, piece, context):
        if self.refuse == piece.name:
            raise NotApplicable("needs what is not there")
        context.say("had to hurry")
        return {"value": context.prepared["base"] + piece.what["add"]}

    def combine(self, anatomy, partials):
        base, *rest = partials
        assert base["base"] == 100
        if self.refuse == "combine":
            raise NotApplicable("needs what is not there")
        return SumResult(total=int(sum(p["value"] for p in rest)))


@pytest.mark.parametrize("names", [("a", "a"), ("../b",), ("prepared",), ("",)])
def test_pieces_whose_files_would_be_one_are_refused(tiny, tmp_path, names):
    @dataclass(frozen=True)
    class Odd(Sum):
        def pieces(self, subject):
            return [Piece(name, {"add": 1}) for name in names]

    with pytest.raises(WrongInput, match="sum has pieces with invalid names"):
        Run(tmp_path).measure(Odd(), tiny(images=8))


def test_a_fault_in_a_sentence_does_not_cost_the_measurement(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(SumResult, "findings", lambda self: [1 / 0])
    assert Run(tmp_path).measure(Sum(), tiny(images=8)).total == 303
    said = "".join(path.read_text() for path in tmp_path.rglob("sum.*.json"))
    assert "could not be written: ZeroDivisionError: division by zero" in said


def test_what_is_prepared_is_done_first_and_read_by_all_pieces(tiny, tmp_path):
    subject = tiny(images=8)
    assert Run(tmp_path).measure(Sum(), subject).total == 303
    (lost,) = tmp_path.rglob("1.piece")
    lost.unlink()  # the others, and what was prepared, are still there
    assert Run(tmp_path).measure(Sum(), subject).total == 303
    (note,) = tmp_path.rglob("*.note.json")
    assert json.loads(note.read_text())["notices"] == ["had to hurry"]


def test_seconds_are_those_of_a_probes_own_pieces(tiny, tmp_path, monkeypatch):
    import retinoscope.run.task as task

    class Clock:
        now = 0.0

        @staticmethod
        def monotonic():
            Clock.now += 1.0
            return Clock.now

    monkeypatch.setattr(task, "time", Clock)
    Run(tmp_path).measure_all((Sum(), Sum(slow=0.1)), tiny(images=8))
    notes = [json.loads(note.read_text()) for note in tmp_path.rglob("*.note.json")]
    assert [note["seconds"] for note in notes] == [
        4.0,
        4.0,
    ]  # three pieces and what they need


@pytest.mark.parametrize("when", ["seconds", "base", "1", "combine"])
def test_a_probe_that_finds_itself_not_applicable_does_not_stop_the_others(tiny, tmp_path, when):
    subject = tiny(images=8)
    found = Run(tmp_path).measure_all([Sum(refuse=when), Variance()], subject)
    assert isinstance(found["sum"], NotApplicable)
    assert found["variance"] == Run(tmp_path / "alone").measure(Variance(), subject)
    (skipped,) = tmp_path.rglob("sum.*.skipped.json")
    assert json.loads(skipped.read_text())["reason"] == "needs what is not there"
    with pytest.raises(NotApplicable, match="needs what is not there"):
        Run(tmp_path).measure(Sum(refuse=when), subject)
    assert Run(tmp_path).measure(Sum(), subject).total == 303  # with other settings it is
    assert skipped.exists()


def test_a_forecast_is_given_where_it_will_take_long(tiny, tmp_path):
    said = io.StringIO()
    reporter = Reporter(Console(file=said, width=200))
    Run(tmp_path, reporter=reporter).measure(Sum(slow=3600.0), tiny(images=8))
    assert "sum will take about 3 h\n" in said.getvalue()
    quick = io.StringIO()
    Run(tmp_path, reporter=Reporter(Console(file=quick))).measure(Sum(slow=0.1), tiny(images=8))
    assert "will take" not in quick.getvalue()
