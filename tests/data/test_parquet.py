from __future__ import annotations

import io
import json
import multiprocessing
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from retinoscope.core.errors import UnreadableFile
from retinoscope.data import parquet
from retinoscope.data.parquet import ParquetSource, find_splits
from retinoscope.data.source import UnknownData, UnreadableImage


def png(shade):
    stream = io.BytesIO()
    Image.new("RGB", (5, 4), (shade, shade, shade)).save(stream, "PNG")
    return stream.getvalue()


def images(count, first=0):
    return [{"bytes": png(first + row), "path": None} for row in range(count)]


def write(path, columns, rows=None, names=None, named="label"):
    """A table; ``names`` are noted as Hugging Face does, ``rows`` is the size of a row group."""
    table = pa.table(columns)
    if names is not None:
        noted = {"info": {"features": {named: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(noted)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def shades(source):
    return [int(source.read(index).max()) for index in range(len(source))]


@pytest.fixture
def table(tmp_path):
    columns = {"image": images(7), "label": [0, 1, 2, 0, 1, 2, 1]}
    return write(tmp_path / "train.parquet", columns, rows=3)


def test_one_file_is_the_test_split(table):
    splits = find_splits(table)
    assert list(splits) == ["test"]
    source = splits["test"]
    assert shades(source) == list(range(7))
    assert source.read(0).shape == (4, 5, 3)
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2, 1]
    assert source.classes == ("0", "1", "2")
    assert source.name(6) == "train.parquet row 6"
    assert source.attributes == {}
    with pytest.raises(IndexError, match="no image 7 among 7"):
        source.read(7)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            ["data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-00001"],
            {"train": [0, 1, 2, 3], "test": [4, 5]},
        ),
        (["plain_text/train-0", "plain_text/validation-0"], {"train": [0, 1], "test": [2, 3]}),
        (["test", "train", "val"], {"test": [0, 1], "train": [2, 3], "val": [4, 5]}),
        (["default/train/0000", "default/train/0001"], {"train": [0, 1, 2, 3]}),
        (["train/0", "test/0"], {"train": [0, 1], "test": [2, 3]}),
        (["0000", "0001"], {"test": [0, 1, 2, 3]}),
        (["test", "unseen-00000-of-00001"], {"test": [0, 1], "unseen": [2, 3]}),
        (["TEST_clean", "trainer"], {"test": [0, 1], "trainer": [2, 3]}),
    ],
)
def test_layouts(tmp_path, files, expected):
    for number, file in enumerate(files):
        columns = {"image": images(2, first=2 * number), "label": [0, 1]}
        write(tmp_path / f"{file}.parquet", columns)
    write(tmp_path / ".cache/train.parquet", {"image": images(1)})
    splits = find_splits(tmp_path)
    assert {split: shades(source) for split, source in splits.items()} == expected


def test_names_of_rows_count_from_the_beginning_of_their_file(tmp_path):
    for shard in range(2):
        write(tmp_path / f"test-{shard}.parquet", {"image": images(5)}, rows=2)
    assert find_splits(tmp_path)["test"].name(8) == "test-1.parquet row 3"


def test_several_sets_in_one_folder_are_refused(tmp_path):
    for name in ("cifar10", "cifar100"):
        write(tmp_path / name / "test.parquet", {"image": images(1)})
    with pytest.raises(UnknownData, match=r"in several folders: cifar10, cifar100. Name one"):
        find_splits(tmp_path)


def test_no_tables(tmp_path):
    with pytest.raises(UnknownData, match=r"no \.parquet files in"):
        find_splits(tmp_path)


def test_class_names_noted_by_hugging_face(tmp_path):
    columns = {"image": images(2), "label": [1, 0]}
    write(tmp_path / "a.parquet", columns, names=["ant", "bee", "cat"])
    (tmp_path / "classes.txt").write_text("x\ny\nz\n")
    assert find_splits(tmp_path / "a.parquet")["test"].classes == ("ant", "bee", "cat")
    write(tmp_path / "a.parquet", columns, names={"0": "ant"})
    assert find_splits(tmp_path / "a.parquet")["test"].classes == ("x", "y", "z")


def test_class_names_in_a_file(tmp_path):
    path = write(tmp_path / "data/test.parquet", {"image": images(2), "label": [1, 0]})
    (tmp_path / "classes.txt").write_text("ant\nbee\ncat\n\n")
    assert find_splits(tmp_path)["test"].classes == ("ant", "bee", "cat")
    (path.parent / "classes.txt").write_text("too short")
    assert find_splits(tmp_path)["test"].classes == ("ant", "bee", "cat")
    assert find_splits(path)["test"].classes == ("0", "1")


def test_class_names_in_a_file_that_is_no_text(tmp_path, table):
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableFile, match=r"classes.txt' cannot be read as class names"):
        find_splits(table)


def test_labels_that_are_text_have_the_same_numbers_in_all_splits(tmp_path):
    write(tmp_path / "train.parquet", {"image": images(3), "label": ["dog", "ant", "dog"]})
    write(tmp_path / "test.parquet", {"image": images(2), "label": ["cat", "dog"]})
    splits = find_splits(tmp_path)
    assert splits["train"].classes == splits["test"].classes == ("ant", "cat", "dog")
    assert splits["train"].labels is not None
    assert splits["train"].labels.tolist() == [2, 0, 2]
    assert splits["test"].labels is not None
    assert splits["test"].labels.tolist() == [1, 2]
    assert find_splits(tmp_path / "test.parquet")["test"].fingerprint != splits["test"].fingerprint


def test_classes_of_the_same_name_stay_apart(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"{split}.parquet", {"image": images(2), "label": [0, 1]})
    (tmp_path / "classes.txt").write_text("crane\ncrane\n")
    labels = find_splits(tmp_path)["test"].labels
    assert labels is not None
    assert labels.tolist() == [0, 1]


def test_numbered_classes_are_as_many_in_all_splits(tmp_path):
    write(tmp_path / "train.parquet", {"image": images(3), "label": [0, 1, 4]})
    write(tmp_path / "test.parquet", {"image": images(2), "label": [1, 0]})
    assert find_splits(tmp_path)["test"].classes == ("0", "1", "2", "3", "4")


def test_dictionaries_are_spelled_out(tmp_path):
    label = pa.array(["dog", "ant", "dog"]).dictionary_encode()
    path = write(tmp_path / "a.parquet", {"image": images(3), "label": label})
    labels = find_splits(path)["test"].labels
    assert labels is not None
    assert labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"coarse_label": [0, 0], "fine_label": [3, 4]}, [3, 4]),
        ({"width": [5, 5], "Label": [1, 0]}, [1, 0]),
        ({"width": [5, 5], "class": ["b", "a"]}, [1, 0]),
        ({"target": [0, 1], "label": [1, 0]}, [1, 0]),
        ({"kind": [1, 1], "id": [8, 9], "file": ["x", "y"]}, [1, 1]),
        ({"kind": ["b", "b"], "file": ["x", "y"]}, [0, 0]),
        ({"id": [8, 9], "file": ["x", "y"], "score": [0.1, 0.1]}, None),
        ({"label": [-1, -1]}, None),
        ({"label": pa.array([None, None], pa.string())}, None),
        ({}, None),
    ],
)
def test_which_column_holds_the_labels(tmp_path, columns, chosen):
    source = find_splits(write(tmp_path / "a.parquet", {"image": images(2), **columns}))["test"]
    assert (source.labels if source.labels is None else source.labels.tolist()) == chosen
    assert (source.classes is None) == (chosen is None)


def test_columns_that_are_asked_for(tmp_path):
    columns = {"image": images(2), "other": images(2, 9), "label": [0, 1], "shape": [1, 0]}
    path = write(tmp_path / "a.parquet", columns)
    source = find_splits(path, image="other", label="shape")["test"]
    assert shades(source) == [9, 10]
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0]


def test_columns_that_cannot_be_told_apart(tmp_path):
    columns = {"left": images(2), "right": images(2), "shape": [1, 1], "colour": [0, 0]}
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(
        UnknownData, match=r"hold the images: left, right. Choose .*a.parquet:image=COLUMN,label="
    ):
        find_splits(path)
    with pytest.raises(UnknownData, match=r"hold the labels: shape, colour. Choose with"):
        find_splits(path, image="left")
    with pytest.raises(
        UnknownData,
        match=r"'height' of .* labels: it does not exist. Those that could are shape, colour; all",
    ):
        find_splits(path, image="left", label="height")
    with pytest.raises(UnknownData, match=r"'shape' of .* hold the images: it is of another type"):
        find_splits(path, image="shape")


def test_no_column_of_images(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": ["a"], "label": [0]})
    with pytest.raises(UnknownData, match=r"no column of images.* Its columns are text, label"):
        find_splits(path)


def test_numbers_too_large_for_labels(tmp_path):
    path = write(tmp_path / "a.parquet", {"image": images(2), "label": [0, 10**9]})
    with pytest.raises(UnknownData, match=r"'label' of .* goes up to 1000000000: these are no lab"):
        find_splits(path)


@pytest.mark.parametrize("labels", [[0, None, 1], [0, -1, 1], ["a", None, "b"]])
def test_labels_that_are_missing_in_some_rows(tmp_path, labels):
    path = write(tmp_path / "a.parquet", {"image": images(3), "label": labels})
    with pytest.raises(UnreadableFile, match=r"a.parquet row 1 has no label in the column 'label'"):
        find_splits(path)


def test_shards_with_other_columns(tmp_path):
    write(tmp_path / "test-0.parquet", {"image": images(1), "label": [0]})
    write(tmp_path / "test-1.parquet", {"image": images(1)})
    with pytest.raises(
        UnknownData, match=r"test-1.parquet' has other columns \(image\) than test-0.parquet"
    ):
        find_splits(tmp_path)


def test_plain_bytes_and_large_ones(tmp_path):
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array([png(3), png(4)], kind)
        assert shades(find_splits(write(tmp_path / "a.parquet", {"jpg": column}))["test"]) == [3, 4]


def test_images_that_are_paths_and_images_that_are_missing(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.png").write_bytes(png(9))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [
        {"bytes": None, "path": "pictures/a.png"},
        {"bytes": png(8), "path": "pictures/a.png"},
        None,
        {"bytes": None, "path": None},
        {"bytes": None, "path": "pictures/gone.png"},
        {"bytes": b"no image", "path": None},
    ]
    source = find_splits(write(tmp_path / "a.parquet", {"image": pa.array(cells, kind)}))["test"]
    assert source.read(0).max() == 9
    assert source.read(1).max() == 8
    for row, reason in [(2, "neither content"), (3, "neither"), (4, "No such file"), (5, "format")]:
        with pytest.raises(UnreadableImage, match=rf"a.parquet row {row} cannot .*{reason}"):
            source.read(row)


def test_damaged_tables(table):
    content = table.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PAR1", content[:-9] + b"\0" * 5 + b"PAR1"):
        table.write_bytes(damaged)
        with pytest.raises(UnreadableFile, match=r"train.parquet' cannot be read as a Parquet tab"):
            find_splits(table)


def test_a_damaged_row_group_makes_its_own_images_unreadable(tmp_path):
    columns = {"image": images(6), "label": [0, 1] * 3}
    path = write(tmp_path / "a.parquet", columns, rows=3)
    group = pq.ParquetFile(path).metadata.row_group(1)
    start = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    source = find_splits(path)["test"]
    assert source.read(2).max() == 2
    with pytest.raises(UnreadableImage, match=r"a.parquet row 4 cannot be read"):
        source.read(4)


def test_a_damaged_column_of_labels(tmp_path):
    path = write(tmp_path / "a.parquet", {"image": images(3), "label": [0, 1, 0]})
    column = pq.ParquetFile(path).metadata.row_group(0).column(2)
    content = bytearray(path.read_bytes())
    content[column.dictionary_page_offset : column.dictionary_page_offset + 20] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"a.parquet' cannot be read as a Parquet table"):
        find_splits(path)


def count_reads(monkeypatch):
    reads = []
    original = pq.ParquetFile.read_row_group

    def read(self, group, *arguments, **options):
        reads.append(group)
        return original(self, group, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
    return reads


def test_row_groups_are_read_once_in_any_order(table, monkeypatch):
    source = find_splits(table)["test"]
    reads = count_reads(monkeypatch)
    for index in (6, 0, 3, 1, 5, 2, 4, 6, 0):
        assert source.read(index).max() == index
    assert sorted(reads) == [0, 1, 2]


def test_row_groups_beyond_the_limit_are_given_up(table, monkeypatch):
    monkeypatch.setattr(parquet, "_CACHED_BYTES", 1)
    source = find_splits(table)["test"]
    reads = count_reads(monkeypatch)
    for index in (0, 1, 3, 0, 2):
        assert source.read(index).max() == index
    assert reads == [0, 1, 0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_what_the_parent_reads(table, start):
    source = ParquetSource([table])
    assert source.read(4).max() == 4  # so that the parent has open files
    with multiprocessing.get_context(start).Pool(1) as pool:
        pixels = pool.map(source.read, [4, 0, 6])
    assert [int(image.max()) for image in pixels] == [4, 0, 6]


class Shades:
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return int(self.source.read(index).max())


def test_workers_of_a_data_loader(table):
    source = ParquetSource([table])
    assert source.read(4).max() == 4
    loader = DataLoader(Shades(source), batch_size=None, num_workers=2)  # type: ignore[arg-type]
    assert list(loader) == list(range(7))


def test_pickling_leaves_out_open_files(table):
    source = ParquetSource([table])
    source.read(0)
    copy = pickle.loads(pickle.dumps(source))
    assert shades(copy) == list(range(7))
    assert copy.fingerprint == source.fingerprint


def test_fingerprint_follows_content_columns_and_names(tmp_path):
    columns = {"image": images(4), "label": [0, 1, 1, 0], "shape": [0, 1, 1, 0]}
    path = write(tmp_path / "a.parquet", columns)
    first = find_splits(path)["test"].fingerprint
    assert find_splits(path.rename(tmp_path / "b.parquet"))["test"].fingerprint == first
    path = tmp_path / "b.parquet"
    seen = {first, find_splits(path, label="shape")["test"].fingerprint}
    (tmp_path / "classes.txt").write_text("ant\nbee")
    seen.add(find_splits(path)["test"].fingerprint)
    (tmp_path / "classes.txt").unlink()
    for changed in ({"label": [0, 1, 0, 1]}, {"image": images(4, first=1)}):
        write(path, {**columns, **changed})
        seen.add(find_splits(path)["test"].fingerprint)
    assert len(seen) == 5
