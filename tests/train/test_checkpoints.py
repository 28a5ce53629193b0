import pytest
import torch

from retinoscope.core.errors import RunFolderError, UnreadableFile
from retinoscope.train.checkpoints import (
    Checkpoint,
    last_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def made(step: int) -> Checkpoint:
    return Checkpoint(step, {"a": torch.arange(6.0) + step, "n": torch.tensor(step)}, {"sum": 0.1})


def test_what_is_written_is_read(tmp_path):
    path = write_checkpoint(tmp_path, made(7))
    found = read_checkpoint(path)
    assert (found.step, found.plain) == (7, {"sum": 0.1})
    assert torch.equal(found.tensors["a"], made(7).tensors["a"])
    assert found.tensors["n"].shape == ()


def test_the_last_two_are_kept(tmp_path):
    for step in (5, 10, 100_000_000, 20):
        write_checkpoint(tmp_path, made(step))
    steps = sorted(read_checkpoint(path).step for path in tmp_path.iterdir())
    assert len(steps) == 2


@pytest.mark.parametrize("harm", ["torn", "flipped", "header", "empty", "foreign"])
def test_a_damaged_one_is_said_and_the_one_before_is_used(tmp_path, harm):
    write_checkpoint(tmp_path, made(1))
    path = write_checkpoint(tmp_path, made(2))
    content = bytearray(path.read_bytes())
    if harm == "flipped":
        content[-3] ^= 1
    changed = bytes(content).replace(b"0.1", b"0.2")
    assert changed != content
    path.write_bytes(
        {
            "torn": content[:-5], "flipped": content, "header": changed, "empty": b"",
            "foreign": b"x" * 99,
        }[harm]
    )  # fmt: skip
    with pytest.raises(UnreadableFile, match="is damaged"):
        read_checkpoint(path)
    said: list[str] = []
    found = last_checkpoint(tmp_path, said.append)
    assert found is not None
    assert found.step == 1
    assert "step-00000002" in said[0]
    assert "The one before is used" in said[0]
    assert not path.exists()


def test_without_any_there_is_none(tmp_path):
    assert last_checkpoint(tmp_path / "nowhere", print) is None


def test_what_cannot_be_read_or_is_of_another_version_is_left_alone(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path, made(1))
    monkeypatch.setattr("retinoscope.train.checkpoints.SCHEMA", 2)
    with pytest.raises(RunFolderError, match="its form is 1, this version's 2"):
        last_checkpoint(tmp_path, print)
    monkeypatch.undo()

    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", refused)
    with pytest.raises(RunFolderError, match="cannot be read: Permission denied"):
        last_checkpoint(tmp_path, print)
    assert path.exists()


def test_where_none_is_left_it_begins_anew(tmp_path):
    write_checkpoint(tmp_path, made(1)).write_bytes(b"")
    said: list[str] = []
    assert last_checkpoint(tmp_path, said.append) is None
    assert "It begins anew" in said[0]
