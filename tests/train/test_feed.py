from dataclasses import replace

import numpy as np
import pytest
import torch

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.data.augment import Augmentation
from retinoscope.train.feed import Feed, plain_batches
from retinoscope.train.images import LabelledImages, find_images
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe

SIZE = Preprocessing(size=(32, 32))
STRONG = Augmentation(randaugment="rand-m9-n2-mstd1.0", erasing=0.5)


@pytest.fixture(scope="module")
def images() -> LabelledImages:
    recipe = Recipe(fraction=50 / 50_000, batch=8)
    train, _ = find_images(recipe, SIZE, (3, 10))
    return train


def feed(images: LabelledImages, **settings) -> Feed:
    return replace(Feed(images, STRONG, len(images) // 8, batch=8, seed=1), **settings)


def test_each_epoch_shows_every_image_once_in_another_order(images):
    made = feed(images, augmentation=Augmentation())
    per_epoch = len(images) // 8
    epochs = [[made.chosen(step) for step in range(n * per_epoch, (n + 1) * per_epoch)]
              for n in range(3)]  # fmt: skip
    orders = []
    for number, epoch in enumerate(epochs, start=1):
        assert {e for e, _ in epoch} == {number}
        order = np.concatenate([indices for _, indices in epoch])
        assert len(set(order.tolist())) == len(order) == 8 * per_epoch
        orders.append(order.tolist())
    assert orders[0] != orders[1] != orders[2]
    assert feed(images, seed=2).chosen(0)[1].tolist() != made.chosen(0)[1].tolist()


def test_a_step_is_the_same_whoever_asks_and_whenever(images):
    made = feed(images)
    in_order = list(made.portions(0, 4, workers=0, pinned=False))
    by_workers = list(made.portions(0, 4, workers=2, pinned=False))
    alone = made[2]
    kept = feed(images.in_memory(print))[2]
    for a, b in zip(in_order, by_workers, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
    assert torch.equal(in_order[2].images, alone.images)
    assert torch.equal(in_order[2].images, kept.images)
    assert not torch.equal(in_order[1].images, in_order[2].images)


def test_processes_share_a_batch_between_them(images):
    whole = feed(images)[3]
    parts = [feed(images, rank=rank, world=2)[3] for rank in range(2)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole.labels, torch.cat([part.labels for part in parts]))
    with pytest.raises(WrongInput, match="cannot be shared by 3 processes"):
        Processes(world=3).check_share(8)


def test_the_views_are_those_of_the_augmentation(images):
    made = feed(images)
    epoch, indices = made.chosen(5)
    index = int(indices[0])
    image = images.split.source.read(images.place(index))
    expected = STRONG.view(image, SIZE, seed=1, epoch=epoch, index=images.place(index))
    assert torch.equal(made[5].images[0], expected)
    assert made[5].labels[0] == images.split.source.labels[images.place(index)]


def test_an_unreadable_image_is_named_and_the_others_are_used(images, monkeypatch):
    from retinoscope.data.source import UnreadableImage

    made = feed(images)
    lost = images.place(int(made.chosen(0)[1][3]))
    source = images.split.source

    class Broken:
        def __getattr__(self, name):
            return getattr(source, name)

        def read(self, index):
            if index == lost:
                raise UnreadableImage("it is empty")
            return source.read(index)

    broken = replace(images, split=replace(images.split, source=Broken()))
    portion = feed(broken)[0]
    assert portion.images.shape[0] == portion.labels.shape[0] == 7
    assert portion.aside == (f"cues/train/{lost}: it is empty",)


def test_plain_batches_are_the_images_as_examined(images):
    kept = images.in_memory(print)
    for some in (images, kept):
        batches = list(plain_batches(some, range(10), 4, print))
        assert [len(labels) for _, labels in batches] == [4, 4, 2]
        pixels = torch.cat([p for p, _ in batches])
        peer = torch.cat([b.images for b in images.split.batches(range(10), 4)])
        assert torch.equal(pixels, peer)
