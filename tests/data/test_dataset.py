from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

from retinoscope.data.dataset import DatasetSource
from retinoscope.data.source import UnknownData, UnreadableImage


class Shades:
    """Images of one shade each; what ``label`` makes of an index is the label."""

    def __init__(self, count=5, label=None, first=0, **attributes):
        self.count, self.label, self.first, self.reads = count, label, first, []
        self.__dict__.update(attributes)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.reads.append(index)
        image = Image.new("RGB", (5, 4), (self.first + index,) * 3)
        return image if self.label is None else (image, self.label(index))


def labels_of(source):
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    return source.labels.tolist()


def test_images_without_labels():
    source = DatasetSource(Shades())
    assert len(source) == 5
    assert source.labels is None
    assert source.classes is None
    assert source.read(3).tolist() == np.full((4, 5, 3), 3).tolist()
    assert source.name(3) == "item 3 of Shades"
    assert source.attributes == {}


@pytest.mark.parametrize(
    "label",
    [
        lambda index: index % 3,
        lambda index: torch.tensor(index % 3),
        lambda index: torch.tensor([index % 3]),
        lambda index: np.int32(index % 3),
    ],
)
def test_images_with_labels(label):
    source = DatasetSource(Shades(label=label))
    assert labels_of(source) == [0, 1, 2, 0, 1]
    assert source.classes == ("0", "1", "2")


def test_labels_that_are_none():
    assert DatasetSource(Shades(label=lambda index: None)).labels is None


@pytest.mark.parametrize("attribute", ["targets", "labels"])
@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
def test_a_list_of_labels_saves_reading_all_items(attribute, form):
    targets = [index % 2 for index in range(500)]
    dataset = Shades(500, lambda index: index % 2, **{attribute: form(targets)})
    assert labels_of(DatasetSource(dataset)) == targets
    assert len(set(dataset.reads)) < 80


@pytest.mark.parametrize(
    "targets", [[0, 0, 0, 0, 1], [0, 1], "01201", None, [[0], [1, 2], [], [], []], [0.0] * 5]
)
def test_a_list_that_is_of_another_kind_or_that_items_contradict_is_left_aside(targets):
    dataset = Shades(label=lambda index: index % 3, targets=targets)
    assert labels_of(DatasetSource(dataset)) == [0, 1, 2, 0, 1]


def test_a_list_of_labels_beside_items_without():
    assert labels_of(DatasetSource(Shades(targets=[0, 1, 2, 0, 1]))) == [0, 1, 2, 0, 1]


def test_class_names():
    def label(index):
        return index % 2

    dataset = Shades(label=label, classes=["ant", "bee", "cat"])
    assert DatasetSource(dataset).classes == ("ant", "bee", "cat")
    assert DatasetSource(dataset, ["x", "y"]).classes == ("x", "y")
    with pytest.raises(UnknownData, match=r"of Shades go up to 1, but only 1 classes have a name"):
        DatasetSource(dataset, ["x"])


@pytest.mark.parametrize("label", [-1, 0.5, "cat", torch.tensor([0, 1]), [0, 1]])
def test_labels_that_are_no_number_of_a_class(label):
    with pytest.raises(UnknownData, match=r"label of item 0 of Shades is .* number of a class"):
        DatasetSource(Shades(label=lambda index: label))


def test_labels_that_some_items_lack():
    with pytest.raises(UnknownData, match="item 2 of Shades has no label, but others have"):
        DatasetSource(Shades(label=lambda index: None if index == 2 else 0))


def test_torch_datasets():
    images = torch.rand(6, 3, 4, 5)
    dataset = TensorDataset(images, torch.arange(6) % 2)
    source = DatasetSource(Subset(dataset, [1, 3, 4]))
    assert labels_of(source) == [1, 1, 0]
    assert source.read(2).tolist() == (images[4] * 255).round().permute(1, 2, 0).int().tolist()
    assert DatasetSource(TensorDataset(images)).labels is None


class Failing(Shades):
    def __getitem__(self, index):
        if index == 2:
            raise RuntimeError("disc on fire\nlong story")
        return super().__getitem__(index)


def test_items_that_fail_are_unreadable_images():
    source = DatasetSource(Failing(label=lambda index: index % 2))
    assert labels_of(source) == [0, 1, -1, 1, 0]
    assert source.classes == ("0", "1")
    with pytest.raises(UnreadableImage, match="item 2 of Failing cannot be read: RuntimeError: di"):
        source.read(2)
    assert source.read(3).max() == 3


def test_items_that_are_no_images_are_unreadable():
    source = DatasetSource([{"image": 1}, (), "cat.png"])
    for index, kind in enumerate(["dict", "NoneType", "str"]):
        with pytest.raises(UnreadableImage, match=f"item {index} of list .* of type {kind}"):
            source.read(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Endless:
    def __getitem__(self, index):
        return index


def test_datasets_that_cannot_be_read_by_number():
    with pytest.raises(UnknownData, match=r"Stream cannot be read by number.* map-style Dataset"):
        DatasetSource(Stream())
    with pytest.raises(UnknownData, match="generator cannot be read by number"):
        DatasetSource(image for image in ())
    with pytest.raises(UnknownData, match="Endless does not say how many items it has"):
        DatasetSource(Endless())


def test_images_that_change_are_refused():
    dataset = [torch.rand(3, 4, 4) for _ in range(3)]

    class Noisy:
        def __len__(self):
            return len(dataset)

        def __getitem__(self, index):
            return torch.rand(3, 4, 4)

    assert DatasetSource(dataset).labels is None
    with pytest.raises(UnknownData, match="item 0 of Noisy is another image each time"):
        DatasetSource(Noisy())


def test_fingerprint():
    first = DatasetSource(Shades()).fingerprint
    assert DatasetSource(Shades()).fingerprint == first
    others = [
        Shades(first=1),
        Shades(6),
        Shades(label=lambda index: 0),
        Shades(label=lambda index: 0, classes=["a"]),
        Failing(),
    ]
    assert len({first, *(DatasetSource(other).fingerprint for other in others)}) == 6
    assert DatasetSource(Shades(fingerprint="v3")).fingerprint == "v3"
    assert DatasetSource([]).fingerprint


def test_pickling():
    source = pickle.loads(pickle.dumps(DatasetSource(Shades())))
    assert source.read(4).max() == 4
