import os

import pytest

from retinoscope.core.files import write_atomically


def test_replaces_whole_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, "old")
    write_atomically(path, "new ×")
    assert path.read_text() == "new ×"
    assert os.listdir(path.parent) == ["file.json"]


def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
