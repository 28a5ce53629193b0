from __future__ import annotations

import io
import json
import pickle
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from retinoscope.core.errors import UnreadableFile
from retinoscope.data.hub import find_hub
from retinoscope.data.source import UnknownData, UnreadableImage

datasets = pytest.importorskip("datasets", reason="hf: needs the package datasets")


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Both were read from the environment long ago, when the package was imported.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    datasets.disable_progress_bars()


def png(shade):
    stream = io.BytesIO()
    Image.new("RGB", (5, 4), (shade, shade, shade)).save(stream, "PNG")
    return stream.getvalue()


def images(count, first=0):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": png(first + row), "path": None} for row in range(count)], kind)


NAMED = {
    "image": {"_type": "Image"},
    "label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"},
    "width": {"dtype": "int64", "_type": "Value"},
}


def write(path, columns, features=None):
    table = pa.table(columns)
    if features is not None:
        known = {name: features[name] for name in columns}
        noted = json.dumps({"info": {"features": known}})
        table = table.replace_schema_metadata({"huggingface": noted})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def labels_of(source):
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    return source.labels.tolist()


def shades(source):
    return [int(source.read(index).max()) for index in range(len(source))]


def test_splits_of_a_folder(tmp_path):
    columns = {"image": images(3), "width": [5, 5, 5], "label": [2, 0, 2]}
    write(tmp_path / "data/train-00000-of-00001.parquet", columns, NAMED)
    columns = {"image": images(2, 9), "width": [5, 5], "label": [1, 0]}
    write(tmp_path / "data/validation-00000-of-00001.parquet", columns, NAMED)
    splits = find_hub(str(tmp_path))
    assert set(splits) == {"train", "test"}
    train, test = splits["train"], splits["test"]
    assert shades(train) == [0, 1, 2]
    assert shades(test) == [9, 10]
    assert train.read(0).shape == (4, 5, 3)
    assert labels_of(train) == [2, 0, 2]
    assert labels_of(test) == [1, 0]
    assert train.classes == test.classes == ("ant", "bee", "cat")
    assert test.attributes == {}
    assert test.name(1) == f"hf:{tmp_path} validation row 1"
    copy = pickle.loads(pickle.dumps(test))
    assert shades(copy) == [9, 10]


@pytest.mark.parametrize("column", [images(3), [png(0), png(1), png(2)]])
def test_columns_without_a_declared_type(tmp_path, column):
    write(tmp_path / "test.parquet", {"picture": column, "target": [1, 0, 4]})
    source = find_hub(str(tmp_path))["test"]
    assert shades(source) == [0, 1, 2]
    assert labels_of(source) == [1, 0, 4]
    assert source.classes == ("0", "1", "2", "3", "4")


def test_labels_that_are_text_have_the_same_numbers_in_all_splits(tmp_path):
    write(tmp_path / "train.parquet", {"image": images(2), "kind": ["dog", "ant"]})
    write(tmp_path / "test.parquet", {"image": images(2), "kind": ["dog", "cat"]})
    splits = find_hub(str(tmp_path), label="kind")
    assert splits["train"].classes == splits["test"].classes == ("ant", "cat", "dog")
    assert labels_of(splits["test"]) == [2, 1]
    assert find_hub(str(tmp_path))["test"].labels is None


def test_a_folder_of_images(tmp_path):
    for file in ("train/ant/1.png", "train/bee/2.png", "test/bee/3.png"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(png(int(file[-5])))
    splits = find_hub(str(tmp_path))
    assert shades(splits["test"]) == [3]
    assert labels_of(splits["test"]) == [1]
    assert splits["test"].classes == ("ant", "bee")


def test_columns_that_cannot_be_told_apart(tmp_path):
    columns = {"left": images(2), "right": images(2), "x": [1, 1], "y": [0, 0]}
    write(tmp_path / "test.parquet", columns)
    with pytest.raises(
        UnknownData, match=r"hold the images: left, right. Choose with hf:/.*:image="
    ):
        find_hub(str(tmp_path))
    with pytest.raises(UnknownData, match="hold the labels: x, y"):
        find_hub(str(tmp_path), image="left")
    assert labels_of(find_hub(str(tmp_path), image="left", label="x")["test"]) == [1, 1]


def test_numbers_too_large_for_labels(tmp_path):
    write(tmp_path / "test.parquet", {"image": images(2), "label": [0, 10**9]})
    with pytest.raises(UnknownData, match=r"'label' of 'hf:.* goes up to 1000000000: these are no"):
        find_hub(str(tmp_path))


def test_labels_that_are_missing(tmp_path):
    write(tmp_path / "train.parquet", {"image": images(2), "label": [0, 1]})
    write(tmp_path / "test.parquet", {"image": images(2), "label": [-1, -1]})
    splits = find_hub(str(tmp_path))
    assert splits["test"].labels is None
    assert splits["test"].classes is None
    assert labels_of(splits["train"]) == [0, 1]
    write(tmp_path / "test.parquet", {"image": images(2), "label": [0, -1]})
    with pytest.raises(UnreadableFile, match="test row 1 has no label, but others have"):
        find_hub(str(tmp_path))


def test_images_that_cannot_be_read(tmp_path):
    cells = [{"bytes": b"no image"}, None, {"bytes": None}, {"bytes": png(3)}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write(tmp_path / "test.parquet", {"image": pa.array(cells, kind)}, NAMED)
    source = find_hub(str(tmp_path))["test"]
    for row in range(3):
        with pytest.raises(UnreadableImage, match=f"test row {row} cannot be read"):
            source.read(row)
    assert source.read(3).max() == 3


def test_rows_that_the_package_cannot_give(tmp_path, monkeypatch):
    write(tmp_path / "test.parquet", {"image": images(2)})
    source = find_hub(str(tmp_path))["test"]

    def fail(self, key):
        raise OSError("disc on fire")

    monkeypatch.setattr(datasets.Dataset, "__getitem__", fail)
    with pytest.raises(UnreadableImage, match="test row 1 cannot be read: disc on fire"):
        source.read(1)


def test_fingerprint_follows_content_not_place(tmp_path):
    columns = {"image": images(3), "label": [2, 0, 2]}
    changes = [{}, {}, {"image": images(3, 1)}, {"label": [2, 0, 1]}]
    for number, change in enumerate(changes):
        write(tmp_path / f"{number}/test.parquet", {**columns, **change}, NAMED)
    first, same, *others = (
        find_hub(str(tmp_path / str(number)))["test"].fingerprint for number in range(4)
    )
    assert first == same
    assert len({first, *others}) == 3


def test_no_such_set_and_no_network():
    with pytest.raises(
        UnknownData, match=r"hf:nobody/nothing cannot be loaded: \w+: .* takes a network, or a fol"
    ):
        find_hub("nobody/nothing")


def test_what_has_no_splits(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda name: iter(()))
    with pytest.raises(UnknownData, match="hf:stream is a tuple_iterator, which has no splits"):
        find_hub("stream")


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnknownData, match=r"pip install 'retinoscope\[hf\]'"):
        find_hub("cifar10")
