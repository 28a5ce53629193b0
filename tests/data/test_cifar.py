from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from retinoscope.core.errors import UnreadableFile
from retinoscope.data.cifar import find_cifar
from retinoscope.data.source import UnknownData

DOWNLOAD = "torchvision.datasets.utils.download_and_extract_archive"


def dump(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=2))


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_cifar10(place):
    stored = place / "cifar-10-batches-py"
    for batch in range(1, 6):
        labels = [(batch + row) % 10 for row in range(4)]
        dump(stored / f"data_batch_{batch}", {"data": pixels(4, batch), "labels": labels})
    dump(stored / "test_batch", {"data": pixels(3), "labels": [9, 0, 5]})
    dump(stored / "batches.meta", {"label_names": [f"thing{n}" for n in range(10)]})
    return stored


def write_cifar100(place):
    stored = place / "cifar-100-python"
    for split, count in (("train", 5), ("test", 2)):
        labels = {"fine_labels": [99] * count, "coarse_labels": [1] * count}
        dump(stored / split, {"data": pixels(count), **labels})
    dump(stored / "meta", {"fine_label_names": [f"thing{n}" for n in range(100)]})
    return stored


def write_table(path, classes=10):
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(stream, "PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"image": [stream.getvalue()] * classes, "label": list(range(classes))}
    pq.write_table(pa.table(columns), path)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise URLError("no network")

    monkeypatch.setattr(DOWNLOAD, refuse)


def sizes(splits):
    return {split: len(source) for split, source in splits.items()}


@pytest.mark.parametrize("inside", ["", "cifar10"])
def test_torchvision_files_of_cifar10(tmp_path, inside):
    write_cifar10(tmp_path / inside)
    splits = find_cifar("cifar10", tmp_path)
    assert sizes(splits) == {"train": 20, "test": 3}
    test, train = splits["test"], splits["train"]
    assert test.labels is not None
    assert test.labels.tolist() == [9, 0, 5]
    assert test.labels.dtype == np.int64
    assert test.classes == tuple(f"thing{n}" for n in range(10))
    image = test.read(1)
    assert image.shape == (32, 32, 3)
    assert image.dtype == np.uint8
    row = pixels(3)[1]
    assert image[2, 5].tolist() == [row[2 * 32 + 5], row[1024 + 69], row[2048 + 69]]
    assert train.name(9) == "data_batch_3 row 1"
    assert np.array_equal(train.read(9)[0, 0], pixels(4, 3)[1][[0, 1024, 2048]])
    assert train.attributes == {}
    assert pickle.loads(pickle.dumps(test)).fingerprint == test.fingerprint


def test_torchvision_files_of_cifar100(tmp_path):
    write_cifar100(tmp_path)
    splits = find_cifar("cifar100", tmp_path)
    assert sizes(splits) == {"train": 5, "test": 2}
    assert splits["test"].labels is not None
    assert splits["test"].labels.tolist() == [99, 99]


def test_fingerprint_follows_pixels_labels_and_names(tmp_path):
    stored = write_cifar10(tmp_path)
    seen = {find_cifar("cifar10", tmp_path)["test"].fingerprint}
    dump(stored / "test_batch", {"data": pixels(3), "labels": [9, 0, 6]})
    seen.add(find_cifar("cifar10", tmp_path)["test"].fingerprint)
    dump(stored / "test_batch", {"data": pixels(3, 1), "labels": [9, 0, 6]})
    seen.add(find_cifar("cifar10", tmp_path)["test"].fingerprint)
    dump(stored / "batches.meta", {"label_names": [f"object{n}" for n in range(10)]})
    seen.add(find_cifar("cifar10", tmp_path)["test"].fingerprint)
    assert len(seen) == 4


@pytest.mark.parametrize(
    "file", ["cifar10/{}.parquet", "cifar10/plain_text/{}-00000-of-00001.parquet", "{}.parquet"]
)
def test_tables(tmp_path, file):
    for split in ("train", "test"):
        write_table(tmp_path / file.format(split))
    write_table(tmp_path / "cifar100" / "test.parquet", classes=100)
    splits = find_cifar("cifar10", tmp_path)
    assert sizes(splits) == {"train": 10, "test": 10}
    assert splits["test"].read(0)[0, 0].tolist() == [255, 0, 0]


def test_class_folders(tmp_path):
    for split in ("train", "test"):
        for number in range(10):
            place = tmp_path / "cifar10" / split / f"thing{number}"
            place.mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(place / "a.png")
    splits = find_cifar("cifar10", tmp_path)
    assert sizes(splits) == {"train": 10, "test": 10}
    assert splits["test"].classes == tuple(f"thing{n}" for n in range(10))


def test_another_set_is_refused(tmp_path):
    write_table(tmp_path / "test.parquet", classes=7)
    with pytest.raises(UnreadableFile, match=r"test split found for cifar10 .* has 7 classes, not"):
        find_cifar("cifar10", tmp_path)


def test_root_from_the_environment(tmp_path, monkeypatch):
    write_cifar10(tmp_path / "set")
    monkeypatch.setenv("RETINOSCOPE_DATA", str(tmp_path / "set"))
    assert sizes(find_cifar("cifar10", None)) == {"train": 20, "test": 3}
    with pytest.raises(UnknownData):
        find_cifar("cifar10", tmp_path / "other", download=False)


def test_root_in_the_home(tmp_path, monkeypatch):
    monkeypatch.delenv("RETINOSCOPE_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_cifar10(tmp_path / ".cache/retinoscope/data")
    assert sizes(find_cifar("cifar10", None)) == {"train": 20, "test": 3}


def test_nothing_found_and_no_network(tmp_path):
    with pytest.raises(UnknownData) as caught:
        find_cifar("cifar100", tmp_path)
    message = str(caught.value)
    for part in (
        "cifar100 was not found",
        str(tmp_path / "cifar-100-python"),
        str(tmp_path / "cifar100" / "cifar-100-python"),
        "{train,test}*.parquet",
        "Downloading it failed: <urlopen error no network>.",
        "--root FOLDER (in Python root=…) or RETINOSCOPE_DATA",
    ):
        assert part in message


def test_downloads_only_if_asked_to(tmp_path, monkeypatch):
    def fetch(url, root, filename, md5, remove_finished):
        assert url.startswith("https://")
        assert len(md5) == 32
        write_cifar10(Path(root))

    monkeypatch.setattr(DOWNLOAD, fetch)
    with pytest.raises(UnknownData, match="Downloads were not asked for"):
        find_cifar("cifar10", tmp_path, download=False)
    assert not list(tmp_path.iterdir())
    assert sizes(find_cifar("cifar10", tmp_path)) == {"train": 20, "test": 3}
    assert (tmp_path / "cifar10" / "cifar-10-batches-py").is_dir()


class Bomb:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments", "wanted"),
    [
        (os.mkdir, ("{}/was_run",), r"posix.mkdir|nt.mkdir"),
        (eval, ("open('{}/was_run', 'w')",), r"_*builtin.*\.eval"),
        (np.load, ("{}/x.npy",), r"numpy.*load"),
    ],
)
def test_pickles_that_run_code_are_refused(tmp_path, function, arguments, wanted):
    stored = write_cifar10(tmp_path)
    bomb = Bomb(function, *(argument.format(tmp_path) for argument in arguments))
    dump(stored / "test_batch", {"data": bomb, "labels": []})
    with pytest.raises(UnreadableFile, match=rf"test_batch' .*wants to run ({wanted}), which was"):
        find_cifar("cifar10", tmp_path)
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (np.array([{}, []], dtype=object), "array of 'O8', not of bytes"),
        (np.zeros((1, 3072)), "array of 'f8', not of bytes"),
        (Bomb(__import__("_codecs").encode, "text", "rot13"), "text in 'rot13'"),
        (np.zeros(3, np.uint8).view(np.recarray), "which was refused"),
    ],
)
def test_pickles_of_anything_but_bytes_are_refused(tmp_path, data, reason):
    dump(write_cifar10(tmp_path) / "test_batch", {"data": data, "labels": []})
    with pytest.raises(UnreadableFile, match=f"cannot be read as a file of CIFAR: .*{reason}"):
        find_cifar("cifar10", tmp_path)


class Array:
    """Pickles as an array does, with whatever state is given."""

    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        function, arguments, _ = np.zeros(1, np.uint8).__reduce__()
        return function, arguments, self.state


def test_arrays_of_python_2_whose_bytes_are_text(tmp_path):
    text = pixels(3, 5).tobytes().decode("latin1")
    data = Array(1, (3, 3072), np.dtype("u1"), False, text)
    dump(write_cifar10(tmp_path) / "test_batch", {"data": data, "labels": [1, 2, 3]})
    image = find_cifar("cifar10", tmp_path)["test"].read(2)
    assert np.array_equal(image[0, 0], pixels(3, 5)[2][[0, 1024, 2048]])


def test_arrays_stored_by_columns(tmp_path):
    data = np.asfortranarray(pixels(3, 5))
    dump(write_cifar10(tmp_path) / "test_batch", {"data": data, "labels": [1, 2, 3]})
    image = find_cifar("cifar10", tmp_path)["test"].read(2)
    assert np.array_equal(image[0, 0], pixels(3, 5)[2][[0, 1024, 2048]])


@pytest.mark.parametrize("state", [(1, (9, 3072), np.dtype("u1"), False, b"few"), (1, (0,))])
def test_arrays_that_do_not_hold_together(tmp_path, state):
    data = {"data": Array(*state), "labels": []}
    dump(write_cifar10(tmp_path) / "test_batch", data)
    with pytest.raises(UnreadableFile, match="test_batch' cannot be read as a file of CIFAR"):
        find_cifar("cifar10", tmp_path)


def test_arrays_of_an_unknown_kind(tmp_path):
    data = {"data": Array(1, (1,), "u1", False, b"x"), "labels": []}
    dump(write_cifar10(tmp_path) / "test_batch", data)
    with pytest.raises(UnreadableFile, match="array of an unknown kind"):
        find_cifar("cifar10", tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        {"data": pixels(2), "labels": [0]},
        {"data": pixels(2)[:, :100], "labels": [0, 1]},
        {"data": pixels(2), "labels": [0, 10]},
        {"data": pixels(2), "labels": [0, "1"]},
        {"labels": [0]},
        {"data": pixels(2)},
    ],
)
def test_batches_that_do_not_fit(tmp_path, batch):
    dump(write_cifar10(tmp_path) / "test_batch", batch)
    with pytest.raises(
        UnreadableFile, match=r"not a batch of CIFAR: .* labels from 0 to 9. It holds (data|labels)"
    ):
        find_cifar("cifar10", tmp_path)


def test_damaged_files(tmp_path):
    stored = write_cifar10(tmp_path)
    content = (stored / "test_batch").read_bytes()
    for damaged in (content[:-99], b"", b"no pickle"):
        (stored / "test_batch").write_bytes(damaged)
        with pytest.raises(UnreadableFile, match="test_batch' cannot be read as a file of CIFAR"):
            find_cifar("cifar10", tmp_path)
    dump(stored / "test_batch", ["a list"])
    with pytest.raises(UnreadableFile, match="test_batch' is not a file of CIFAR: list"):
        find_cifar("cifar10", tmp_path)
    (stored / "test_batch").unlink()
    with pytest.raises(UnreadableFile, match=r"test_batch' cannot .*No such file"):
        find_cifar("cifar10", tmp_path)


def test_class_names_that_do_not_fit(tmp_path):
    dump(write_cifar10(tmp_path) / "batches.meta", {"label_names": ["cat"]})
    with pytest.raises(UnreadableFile, match=r"batches.meta' does not hold 10 label_names"):
        find_cifar("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "count", "fourth"), [("cifar10", 5000, "cat"), ("cifar100", 10000, "bear")]
)
def test_the_real_thing(name, count, fourth):
    root = os.environ.get("RETINOSCOPE_DATA")
    if root is None:
        pytest.skip("RETINOSCOPE_DATA does not say where the real CIFAR lies")
    source = find_cifar(name, Path(root), download=False)["test"]
    assert len(source) in (count, 10000)
    assert source.classes is not None
    assert source.classes[3] == fourth
    assert source.labels is not None
    assert len(np.bincount(source.labels)) == len(source.classes)
    for index in (0, 4999, 17, len(source) - 1):
        assert source.read(index).shape == (32, 32, 3)
