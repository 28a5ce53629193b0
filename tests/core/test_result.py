import json
from typing import ClassVar

import numpy as np
import pytest

from retinoscope.core.errors import UnreadableFile
from retinoscope.core.result import Result, answer, axes, load_described, pack, seal, unpack


@answer
class Toy(Result):
    probe: ClassVar[str] = "toy"
    names: tuple[str, ...]
    nested: tuple[tuple[str, int], ...] = ()
    values_of: np.ndarray = axes("unit", unit="m", title="Lengths")


@pytest.fixture
def toy():
    return Toy(
        names=("a", "ü"), nested=(("x", 1),), values_of=np.array([1.0, np.nan]),
        protocol={"model": "m", "set aside": []},
    )  # fmt: skip


def test_to_disk_and_back(toy, tmp_path):
    toy.save(tmp_path, "toy.key")
    assert Toy.load(tmp_path, "toy.key") == toy
    assert Toy.load(tmp_path, "toy.key") != Toy(names=("b",), values_of=np.zeros(2))
    assert toy != "something else"


def test_a_result_describes_itself_where_its_class_is_not_known(toy, tmp_path):
    toy.save(tmp_path)
    again = load_described(tmp_path, "toy")
    assert again.probe == "toy"
    assert again.names == ("a", "ü")
    np.testing.assert_array_equal(again.values_of, toy.values_of)
    assert dict(again.described()["values_of"].metadata) == {
        k: list(v) if isinstance(v, tuple) else v
        for k, v in toy.described()["values_of"].metadata.items()
    }
    assert str(again) == str(toy)


def test_the_same_result_gives_the_same_bytes(toy, tmp_path):
    for name in ("one", "two"):
        toy.save(tmp_path / name)
    for file in ("toy.npz", "toy.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_prints_its_axes(toy):
    assert str(toy) == "toy of m\n  values_of: 2 unit, m"
    assert repr(toy) == str(toy)


def test_what_is_not_whole_is_refused_by_name(toy, tmp_path):
    toy.save(tmp_path)
    path = tmp_path / "toy.json"
    plain, packed = json.loads(path.read_text()), (tmp_path / "toy.npz").read_bytes()
    for change, says in (
        ({"probe": "other"}, "contains other of schema 1, but this version reads toy of schema 1"),
        ({"schema": 2}, "contains toy of schema 2"),
        ({"names": ["changed"]}, "or the array file next to it is damaged"),
        ({"unknown": 3}, "has the fields"),
    ):
        changed = plain | change
        if "names" not in change:
            changed["sha256"] = seal({k: v for k, v in changed.items() if k != "sha256"}, packed)
        path.write_text(json.dumps(changed))
        with pytest.raises(UnreadableFile, match=says):
            Toy.load(tmp_path)
    path.write_text("{")
    with pytest.raises(UnreadableFile, match="is not a complete result"):
        Toy.load(tmp_path)
    path.write_text("[]")
    with pytest.raises(UnreadableFile, match="is not a complete result"):
        Toy.load(tmp_path)


def test_numbers_only():
    with pytest.raises(TypeError, match="numbers, not objects: a"):
        pack({"a": np.array([object()])})
    np.testing.assert_array_equal(unpack(pack({"a": np.arange(3)}))["a"], [0, 1, 2])


def test_values_that_json_cannot_hold_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range float values"):
        Toy(names=(), nested=((float("nan"), 1),), values_of=np.zeros(0)).save(tmp_path)
    assert not list(tmp_path.iterdir())


COVERED = {
    "units": ["a", "b", "c"], "kinds": ["conv", "attention", "conv"], "stages": [None, 1, 1],
    "subsamples": [False, False, True], "skipped": [["head", "its state has no grid"]],
}  # fmt: skip


@answer
class Stepping(Result):
    probe: ClassVar[str] = "stepping"
    images: int
    step: np.ndarray = axes("unit", title="Steps", changes="the loss")


@pytest.fixture
def old_form(tmp_path):
    """A file from before coverage was one field and findings were saved."""
    packed = pack({"step": np.array([-2.0, 1.0, 3.0])})
    known = ("axes", "unit", "title", "x", "error", "changes", "rows", "marks", "figure")
    about = {k: v for k, v in Stepping.described()["step"].metadata.items() if k in known}
    plain = {
        "probe": "stepping", "schema": 1, "described": {"step": about | {"axes": ["unit"]}},
        "protocol": {"model": "m"}, "images": 7, **COVERED,
    }  # fmt: skip
    (tmp_path / "stepping.npz").write_bytes(packed)
    (tmp_path / "stepping.json").write_text(json.dumps(plain | {"sha256": seal(plain, packed)}))
    return tmp_path


@pytest.mark.parametrize("read", [Stepping.load, lambda folder: load_described(folder, "stepping")])
def test_files_whose_coverage_is_five_fields_are_read(old_form, read):
    found = read(old_form)
    assert found.coverage.units == found.units == ("a", "b", "c")
    assert found.kinds == ("conv", "attention", "conv")
    assert found.stages == (None, 1, 1)
    assert found.subsamples == (False, False, True)
    assert found.skipped == (("head", "its state has no grid"),)
    assert found.images == 7
    assert found.findings() == [
        "1 of 1 conv units lower the loss (median step −2; 1 that subsamples is not counted)",
        "0 of 1 attention units lower the loss (median step +1)",
    ]


@pytest.mark.parametrize("read", [Stepping.load, lambda folder: load_described(folder, "stepping")])
def test_coverage_and_findings_are_saved(old_form, tmp_path, read):
    found = Stepping.load(old_form)
    found.save(tmp_path / "new")
    plain = json.loads((tmp_path / "new" / "stepping.json").read_text())
    assert plain["coverage"] == COVERED
    assert plain["findings"] == found.findings()
    assert "units" not in plain
    again = read(tmp_path / "new")
    assert again.coverage == found.coverage
    assert again.findings() == found.findings()


def test_a_result_of_the_whole_network_has_no_coverage(toy, tmp_path):
    assert toy.coverage is None
    assert toy.units == toy.skipped == ()
    assert toy.findings() == []
    toy.save(tmp_path)
    assert "coverage" not in json.loads((tmp_path / "toy.json").read_text())


def test_what_a_class_of_the_users_says_is_said_where_it_is_not_known(tmp_path):
    @answer
    class Own(Result):
        probe: ClassVar[str] = "own"
        units: tuple[str, ...]  # a field of that name goes before the coverage
        level: np.ndarray = axes("unit", title="Levels")

        def findings(self) -> list[str]:
            return [f"the highest level is {self.level.max():g}"]

    own = Own(units=("a", "b"), level=np.array([1.0, 3.0]))
    own.save(tmp_path)
    assert Own.load(tmp_path) == own
    again = load_described(tmp_path, "own")
    assert again.findings() == ["the highest level is 3"]
    assert again.units == ("a", "b")
