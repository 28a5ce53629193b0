from dataclasses import replace

import numpy as np
import pytest
import torch

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.data.augment import Augmentation
from retinoscope.data.augmenting import generator
from retinoscope.data.cues import Cues
from retinoscope.data.dataset import DatasetSource
from retinoscope.data.load import load_data
from retinoscope.data.prepare import prepare
from retinoscope.data.source import UnknownData
from retinoscope.data.split import ImageSplit
from retinoscope.data.subset import balanced_subset, evenness

PLAIN = Preprocessing(size=(16, 16))


def cues(images=50, **more):
    return ImageSplit(
        "train", Cues("train", 16), np.arange(images), PLAIN, 3, np.arange(10), 10, **more
    )


def test_images_are_those_of_the_source_in_unit_range():
    split = cues()
    (batch,) = split.batches([3, 41], 8)
    expected = Cues("train", 16).read_many([3, 41]).transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(batch.images.numpy(), expected, atol=1e-7)
    assert batch.labels.tolist() == Cues("train", 16).labels[[3, 41]].tolist()
    assert batch.indices == (3, 41)
    assert batch.targets is None


@pytest.mark.parametrize("augmentation", [None, Augmentation(mixup=0.8, smoothing=0.1)])
def test_batches_repeat_for_any_size_order_and_number_of_workers(augmentation):
    split = cues(augmentation=augmentation)
    whole = torch.cat([b.images for b in split.batches(range(20), 20)])
    for size, workers in ((7, 0), (7, 2), (1, 1)):
        again = torch.cat([b.images for b in split.batches(range(20), size, workers)])
        assert torch.equal(whole, again)
    (backwards,) = split.batches(range(19, -1, -1), 20)
    assert torch.equal(backwards.images.flip(0), whole)


def test_augmentation_depends_on_seed_and_index_alone():
    once, other = (cues(augmentation=Augmentation(), seed=s) for s in (0, 1))
    (a,), (b,) = (split.batches(range(30), 30) for split in (once, other))
    assert not torch.equal(a.images, b.images)
    assert once.fingerprint != other.fingerprint != cues().fingerprint
    (clean,) = cues().batches(range(30), 30)
    moved = (a.images != clean.images).flatten(1).any(1)
    assert moved.float().mean() > 0.8  # one in 25 stays where it was, half of these unflipped


def test_mixup_mixes_two_images_and_their_labels_by_the_same_share():
    split = cues(augmentation=Augmentation(crop=0, flip=False, mixup=1.0))
    (batch,) = split.batches(range(50), 50)
    (clean,) = cues().batches(range(50), 50)
    torch.testing.assert_close(batch.targets.sum(1), torch.ones(50))
    for index in range(50):
        random = generator(0, index, 1)
        share, partner = random.beta(1, 1), int(random.integers(50))
        mixed = share * clean.images[index] + (1 - share) * clean.images[partner]
        torch.testing.assert_close(batch.images[index], mixed, atol=1e-6, rtol=0)
        own, theirs = int(clean.labels[index]), int(clean.labels[partner])
        expected = share if own != theirs else 1.0
        assert batch.targets[index, own].item() == pytest.approx(expected, abs=1e-6)


def test_smoothing_spreads_its_share():
    (batch,) = cues(augmentation=Augmentation(smoothing=0.2)).batches(range(5), 5)
    assert batch.targets[0].max().item() == pytest.approx(0.82)
    assert batch.targets[0].min().item() == pytest.approx(0.02)


def test_impossible_augmentations_are_refused():
    with pytest.raises(WrongInput, match="mixup is 0 or more; got -1"):
        Augmentation(mixup=-1)


class Odd:
    """Every third item is broken."""

    classes = ("a", "b")

    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index % 3 == 2:
            raise OSError("disc rot")
        return np.full((16, 16, 3), index * 20, np.uint8), index % 2


def test_unreadable_images_are_set_aside_by_name_and_reason():
    source = DatasetSource(Odd())
    split = ImageSplit("test", source, np.arange(9), PLAIN, 3, np.arange(2), 2)
    batches = list(split.batches(range(9), 4))
    assert [len(b.images) for b in batches] == [3, 3, 0]
    aside = [entry for b in batches for entry in b.set_aside]
    assert [entry.image for entry in aside] == [f"item {i} of Odd" for i in (2, 5, 8)]
    assert "disc rot" in aside[0].reason
    assert sum((b.indices for b in batches), ()) == (0, 1, 3, 4, 6, 7)
    (only_bad,) = split.batches([2, 5], 4)
    assert only_bad.images.shape == (0, 3, 16, 16)


def test_preparation_is_timms():
    from PIL import Image
    from timm.data import create_transform

    pixels = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    for mode in ("center", "squash", "border"):
        wanted = Preprocessing(size=(32, 32), crop_pct=0.875, crop_mode=mode)
        theirs = create_transform(
            (3, 32, 32), interpolation="bicubic", crop_pct=0.875, crop_mode=mode,
            mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        )(Image.fromarray(pixels))  # fmt: skip
        ours = prepare(pixels, wanted).float() / 255
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (wanted.mean, wanted.std))
        torch.testing.assert_close((ours - mean) / std, theirs, atol=1e-5, rtol=0)


def test_grey_models_get_grey_images_and_other_channels_a_word():
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[..., 0] = 255
    assert prepare(pixels, PLAIN, 1).shape == (1, 16, 16)
    assert prepare(pixels, PLAIN, 1).unique().tolist() == [76]  # the weight of red in grey
    with pytest.raises(WrongInput, match="takes images of 4 channels"):
        prepare(pixels, PLAIN, 4)


def test_subsets_are_balanced_fixed_and_nested():
    labels = np.repeat(np.arange(5), [100, 100, 100, 100, 3])
    few, more = (balanced_subset(labels, len(labels), n) for n in (50, 120))
    assert np.bincount(labels[few]).tolist() == [12, 12, 12, 11, 3] or (
        sorted(np.bincount(labels[few]))[1:] == [11, 12, 12, 12]
    )
    assert set(few) < set(more)
    assert (np.diff(few) > 0).all()
    np.testing.assert_array_equal(few, balanced_subset(labels, len(labels), 50))
    assert not np.array_equal(few, balanced_subset(labels, len(labels), 50, seed=1))
    assert len(balanced_subset(None, 10, 4)) == 4
    assert len(balanced_subset(labels, len(labels), 10_000)) == len(labels)


def test_a_choice_is_called_balanced_only_if_it_is():
    for images, even, says in (
        (20, True, "the same number of every class"),
        (24, False, "2 or 3 of every class"),
        (4, False, "from 4 of 10 classes, 1 each"),
    ):
        places = balanced_subset(Cues("train", 16).labels, 1000, images)
        protocol = replace(cues(balanced=True), places=places).protocol
        assert (protocol["balanced"], protocol["choice"]) == (even, says)
    assert cues().protocol["balanced"] is False
    assert cues().protocol["choice"] == ""


def test_classes_that_have_too_few_images_are_told():
    labels = np.repeat(np.arange(5), [100, 100, 100, 100, 3])
    found = evenness(labels, labels[balanced_subset(labels, len(labels), 43)])
    assert found == (False, "as even over classes as they have images, 3 to 10 of each")
    assert evenness(labels, labels[:0]) == (False, "")
    unreadable = np.array([-1, 0, 0, 1, 1])
    assert evenness(unreadable, unreadable)[0]


def test_data_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("RETINOSCOPE_DATA", raising=False)
    assert set(load_data("cues")) == {"train", "test", "conflict", "shape_only", "texture_only"}
    assert load_data("cues:seed=3")["test"].fingerprint != load_data("cues")["test"].fingerprint
    with pytest.raises(UnknownData, match=r"There are no data 'cuse'\. Did you mean 'cues'"):
        load_data("cuse")
    with pytest.raises(UnknownData, match="cues has no option colour"):
        load_data("cues:colour=red")
    with pytest.raises(UnknownData, match="is not a folder"):
        load_data("cifar10", root=tmp_path / "nowhere")
    (tmp_path / "imagenet" / "val" / "n01440764").mkdir(parents=True)
    from PIL import Image

    Image.new("RGB", (9, 9)).save(tmp_path / "imagenet" / "val" / "n01440764" / "a.png")
    found = load_data("imagenet", root=tmp_path)
    assert found["test"].classes == ("n01440764",)
    monkeypatch.setenv("RETINOSCOPE_DATA", str(tmp_path))
    assert len(load_data("imagenet")["test"]) == 1
    assert set(load_data({"train": Odd(), "test": Odd()})) == {"train", "test"}
    with pytest.raises(UnknownData, match="no columns to choose"):
        load_data(f"{tmp_path / 'imagenet'}:image=x")
