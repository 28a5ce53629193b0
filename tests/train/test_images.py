from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.data.subset import class_fraction
from retinoscope.train.images import find_images
from retinoscope.train.recipe import Recipe

SIZE = Preprocessing(size=(32, 32))


@pytest.fixture
def photos(tmp_path):
    """Two classes of 8 and 4 training images, and one test image each."""
    random = np.random.default_rng(0)
    for split, counts in (("train", (8, 4)), ("test", (1, 1))):
        for label, count in enumerate(counts):
            folder = tmp_path / split / f"class{label}"
            folder.mkdir(parents=True)
            for n in range(count):
                pixels = random.integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{n}.png")
    return tmp_path


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.1, 0.06, 0.02])
def test_a_fraction_takes_the_same_share_of_each_class(fraction):
    labels = np.repeat(np.arange(100), 500)
    chosen = class_fraction(labels, fraction)
    counts = np.bincount(labels[chosen], minlength=100)
    assert set(counts.tolist()) == {int(500 * fraction + 1e-9)}
    assert set(class_fraction(labels, 0.02)) <= set(chosen.tolist())
    assert (np.diff(chosen) > 0).all()


def test_a_fraction_of_unequal_classes_keeps_their_proportion():
    labels = np.array([0] * 40 + [1] * 10 + [2])
    assert np.bincount(labels[class_fraction(labels, 0.5)]).tolist() == [20, 5, 1]
    assert class_fraction(labels, 0.5, seed=1).tolist() != class_fraction(labels, 0.5).tolist()


def test_all_images_are_found_with_their_labels(photos):
    train, test = find_images(Recipe(data=str(photos), batch=4), SIZE, (3, 2))
    assert test is not None
    assert (len(train), len(test)) == (12, 2)
    assert np.bincount(train.labels).tolist() == [8, 4]
    assert train.protocol["images"] == 12
    half, _ = find_images(Recipe(data=str(photos), batch=4, fraction=0.5), SIZE, (3, 2))
    assert np.bincount(half.labels).tolist() == [4, 2]


def test_what_is_held_out_is_not_trained_on(photos):
    train, held = find_images(Recipe(data=str(photos), batch=4, holdout=0.25), SIZE, (3, 2))
    assert held is not None
    assert np.bincount(held.labels).tolist() == [2, 1]
    assert sorted([*train.split.places, *held.split.places]) == list(range(12))
    assert held.split.name == "train, held out"


def test_a_choice_is_scored(photos):
    _, test = find_images(Recipe(data="cues", batch=4, scored=30), SIZE, (3, 10))
    assert test is not None
    assert np.bincount(test.labels).tolist() == [3] * 10


def test_in_memory_they_are_the_same(photos):
    train, _ = find_images(Recipe(data=str(photos), batch=4), replace(SIZE, crop_pct=0.9), (3, 2))
    kept = train.in_memory(print)
    assert kept.pixels is not None
    for index in (0, 7, 11):
        assert torch.equal(train.prepared(index), kept.prepared(index))


def test_an_image_that_cannot_be_read_is_said_and_left_out(photos):
    (photos / "train" / "class1" / "2.png").write_bytes(b"no image")
    said: list[str] = []
    train, _ = find_images(Recipe(data=str(photos), batch=4), SIZE, (3, 2))
    kept = train.in_memory(said.append)
    assert len(kept) == 11
    assert np.bincount(kept.labels).tolist() == [8, 3]
    assert "Set aside" in said[0]
    assert "2.png" in said[0]


@pytest.mark.parametrize(
    ("settings", "outputs", "says"),
    [
        ({"batch": 13}, 2, "A batch of 13 cannot be filled.*gives 12 images.*--batch 12"),
        ({"batch": 4}, 10, "has 10 answers, but .* has 2 classes.*num_classes=2"),
        ({"batch": 4}, 1, "has 1 answers, but .* has 2 classes"),
    ],
)
def test_what_does_not_fit_is_refused(photos, settings, outputs, says):
    with pytest.raises(WrongInput, match=says):
        find_images(Recipe(data=str(photos), **settings), SIZE, (3, outputs))


def test_data_without_a_training_split_or_labels_are_refused(photos):
    with pytest.raises(WrongInput, match=r"no split called train.*It has: "):
        find_images(Recipe(data=str(photos / "test"), batch=1), SIZE, (3, 2))
