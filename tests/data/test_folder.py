from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from PIL import Image

from retinoscope.core.errors import UnreadableFile
from retinoscope.data.folder import find_splits, is_image_folder
from retinoscope.data.source import UnknownData, UnreadableImage


@pytest.fixture
def put(tmp_path):
    """Write small images, each of one shade of grey, and other files as text."""

    def write(*files, shade=7):
        for file in files:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() in (".txt", ".parquet", ".md", ""):
                path.write_text("cat\ndog\n")
            else:
                image = Image.new("RGB", (5, 4), (shade, shade, shade))
                image.save(path, "JPEG" if "jp" in path.suffix.lower() else None)
        return tmp_path

    return write


def names(source):
    return [source.name(index) for index in range(len(source))]


def test_class_folders(put):
    root = put("dog/2.png", "dog/1.jpg", "cat/deep/er/a.JPEG", "cat/b.webp")
    put("classes.txt", "dog/notes.txt", "dog/.hidden.png", ".git/x.png", "__MACOSX/dog/._1.jpg")
    (root / "bird").mkdir()
    splits = find_splits(root)
    assert list(splits) == ["test"]
    source = splits["test"]
    assert source.classes == ("bird", "cat", "dog")
    assert names(source) == ["cat/b.webp", "cat/deep/er/a.JPEG", "dog/1.jpg", "dog/2.png"]
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [1, 1, 2, 2]
    assert source.attributes == {}
    assert source.read(3).tolist() == np.full((4, 5, 3), 7).tolist()
    assert len(pickle.loads(pickle.dumps(source))) == 4


def test_flat_folder_has_no_labels(put):
    root = put("b.png", "a.TIF", "readme.md")
    (root / "empty").mkdir()
    source = find_splits(root)["test"]
    assert names(source) == ["a.TIF", "b.png"]
    assert source.labels is None
    assert source.classes is None
    assert source.read(0).shape == (4, 5, 3)


def test_single_image(put):
    source = find_splits(put("one.bmp") / "one.bmp")["test"]
    assert names(source) == ["one.bmp"]
    assert source.labels is None
    assert source.read(0).max() == 7


@pytest.mark.parametrize(
    ("folders", "called"),
    [
        (["train", "val"], {"train": "train", "val": "test"}),
        (["Train", "validation"], {"Train": "train", "validation": "test"}),
        (["train", "valid", "test"], {"train": "train", "valid": "val", "test": "test"}),
        (["eval"], {"eval": "test"}),
        (["train"], {"train": "train"}),
        (["val", "valid"], {"val": "test", "valid": "valid"}),
    ],
)
def test_splits(put, folders, called):
    for folder in folders:
        root = put(f"{folder}/cat/{folder}.png", "docs/about.txt")
    splits = find_splits(root)
    assert {names(source)[0]: split for split, source in splits.items()} == {
        f"{folder}/cat/{folder}.png": split for folder, split in called.items()
    }


def test_splits_share_their_classes(put):
    root = put("train/ant/1.png", "train/cat/1.png", "test/cat/2.png", "test/bee/3.png")
    splits = find_splits(root)
    assert splits["train"].classes == splits["test"].classes == ("ant", "bee", "cat")
    assert splits["train"].labels is not None
    assert splits["train"].labels.tolist() == [0, 2]
    assert splits["test"].labels is not None
    assert splits["test"].labels.tolist() == [1, 2]


def test_a_flat_split_has_no_labels(put):
    splits = find_splits(put("train/ant/1.png", "test/2.png"))
    assert splits["train"].classes == ("ant",)
    assert splits["test"].classes is None
    assert splits["test"].labels is None
    assert splits["test"].read(0).max() == 7


def test_a_class_may_be_called_train(put):
    source = find_splits(put("train/1.png", "tram/2.png"))["test"]
    assert source.classes == ("train", "tram")


def test_splits_beside_other_folders_are_refused(put):
    with pytest.raises(UnknownData, match="splits test, train, but also images in extra: are"):
        find_splits(put("train/a/1.png", "test/a/1.png", "extra/1.png"))


def test_splits_that_differ_in_case_are_refused(put):
    with pytest.raises(UnknownData, match="'Train' and 'train' differ in case only"):
        find_splits(put("train/a/1.png", "Train/a/1.png"))


@pytest.mark.parametrize("where", ["", "train/"])
def test_loose_images_beside_folders_are_refused(put, where):
    files = [f"{where}cat/1.png", *(f"{where}loose{number}.png" for number in range(7))]
    with pytest.raises(
        UnknownData,
        match=r"both in folders \(cat\) and loose \(loose0.png, .*loose4.png and 2 more\)",
    ):
        find_splits(put(*files))


def test_loose_images_beside_splits_are_refused(put):
    with pytest.raises(UnknownData, match=r"both in folders \(train\) and loose \(x.png\)"):
        find_splits(put("train/cat/1.png", "x.png"))


def test_no_images(put):
    root = put("data/a.parquet", "data/b.parquet", "notes.txt")
    assert not is_image_folder(root)
    with pytest.raises(
        UnknownData,
        match=r"no images but 3 other files \(2 .parquet, 1 .txt\). Give an image file",
    ):
        find_splits(root)
    assert is_image_folder(put("deep/er/1.png"))


def test_empty_folder(tmp_path):
    with pytest.raises(UnknownData, match="no images but no other files either"):
        find_splits(tmp_path)


def test_paths_that_are_no_folder(put):
    root = put("notes.txt")
    with pytest.raises(UnknownData, match=r"'.*gone' does not exist. Give an image file"):
        find_splits(root / "gone")
    with pytest.raises(UnknownData, match=r"'.*notes.txt' is a file, but no image"):
        find_splits(root / "notes.txt")


def test_damaged_images_are_found_at_reading(put):
    root = put("cat/1.png", "cat/2.png")
    (root / "cat/1.png").write_bytes(b"")
    (root / "cat/0.png").symlink_to(root / "gone.png")
    source = find_splits(root)["test"]
    assert len(source) == 3
    for index, file in enumerate(["cat/0.png", "cat/1.png"]):
        with pytest.raises(UnreadableImage, match=f"{file} cannot be read"):
            source.read(index)
    assert source.read(2).max() == 7


def test_links_are_followed_but_not_in_circles(put):
    root = put("real/1.png", "set/dog/2.png")
    (root / "set/cat").symlink_to(root / "real")
    (root / "set/dog/again").symlink_to(root / "set/dog")
    source = find_splits(root / "set")["test"]
    assert names(source) == ["cat/1.png", "dog/2.png"]


def test_folders_that_cannot_be_listed_are_not_left_out(put, monkeypatch):
    root = put("cat/1.png", "dog/1.png", "dog/shut/2.png")
    listing = os.scandir

    def scandir(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UnreadableFile, match=r"shut' cannot be listed: .*Permission denied"):
        find_splits(root)


def test_a_folder_that_cannot_be_listed(put, monkeypatch):
    def listdir(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(UnreadableFile, match=r"cannot be listed: .*Permission denied"):
        find_splits(put("cat/1.png"))


def test_fingerprint_follows_paths_and_sizes_but_not_times(put):
    root = put("cat/1.png", "dog/2.png")
    first = find_splits(root)["test"].fingerprint
    os.utime(root / "cat/1.png", (1, 1))
    assert find_splits(root)["test"].fingerprint == first
    moved = root.rename(root.with_name("elsewhere"))
    assert find_splits(moved)["test"].fingerprint == first
    seen = {first}
    (moved / "cat/1.png").write_bytes(b"other")
    seen.add(find_splits(moved)["test"].fingerprint)
    (moved / "dog/2.png").rename(moved / "cat/2.png")
    seen.add(find_splits(moved)["test"].fingerprint)
    (moved / "cow").mkdir()
    seen.add(find_splits(moved)["test"].fingerprint)
    assert len(seen) == 4
