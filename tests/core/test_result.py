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
        ({"probe": "other"}, "holds other of schema 1, but this version reads toy of schema 1"),
        ({"schema": 2}, "holds toy of schema 2"),
        ({"names": ["changed"]}, "or the arrays beside it are damaged"),
        ({"unknown": 3}, "has the fields"),
    ):
        changed = plain | change
        if "names" not in change:
            changed["sha256"] = seal({k: v for k, v in changed.items() if k != "sha256"}, packed)
        path.write_text(json.dumps(changed))
        with pytest.raises(UnreadableFile, match=says):
            Toy.load(tmp_path)
    path.write_text("{")
    with pytest.raises(UnreadableFile, match="is not a whole result"):
        Toy.load(tmp_path)
    path.write_text("[]")
    with pytest.raises(UnreadableFile, match="is not a whole result"):
        Toy.load(tmp_path)


def test_numbers_only():
    with pytest.raises(TypeError, match="numbers, not objects: a"):
        pack({"a": np.array([object()])})
    np.testing.assert_array_equal(unpack(pack({"a": np.arange(3)}))["a"], [0, 1, 2])


def test_values_that_json_cannot_hold_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range float values"):
        Toy(names=(), nested=((float("nan"), 1),), values_of=np.zeros(0)).save(tmp_path)
    assert not list(tmp_path.iterdir())
