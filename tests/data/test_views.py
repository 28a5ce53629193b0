"""Views: the same pixels for any batch, order and choice; labels come along."""

import colorsys
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest
import torch

from retinoscope.core.errors import NotApplicable
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.settings import WrongSetting
from retinoscope.core.view import AUGMENTED, CLEAN, PixelView, describe_view
from retinoscope.data.augment import Augmentation
from retinoscope.data.corruptions import CORRUPTIONS, Corruption
from retinoscope.data.cues import Cues
from retinoscope.data.split import ImageSplit
from retinoscope.data.views import Corrupted, GaussianImages, Noised, Occluded

# So narrow that no pixel leaves [0, 1]; the view itself does not clip.
NARROW = GaussianImages(std=0.02)
VIEWS = [NARROW, Noised(), Occluded(), *(Corrupted(name) for name in get_args(Corruption))]


def split_of(places=range(50), name="train"):
    return ImageSplit(
        name, Cues("train", 16), np.array(places), Preprocessing(size=(16, 16)), 3, np.arange(10),
        10, in_training=Augmentation(mixup=0.5) if name == "train" else None, seed=1,
    )  # fmt: skip


def images_of(split, indices=range(12), size=50, workers=0):
    return torch.cat([b.images for b in split.batches(list(indices), size, workers)])


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_pixels_depend_on_the_image_and_the_seed_alone(view):
    assert isinstance(view, PixelView)
    split = split_of().viewed(view)
    whole = images_of(split)
    assert whole.shape == (12, 3, 16, 16)
    assert whole.dtype == torch.float32
    assert 0 <= whole.min()
    assert whole.max() <= 1
    assert not torch.equal(whole, images_of(split_of()))
    assert torch.equal(whole, images_of(split, size=5))
    assert torch.equal(whole.flip(0), images_of(split, range(11, -1, -1)))
    # Another choice of images: those that are in both are seen alike.
    fewer = split_of(range(0, 50, 2)).viewed(view)
    assert torch.equal(images_of(fewer, range(6)), whole[::2])
    drawn = not torch.equal(images_of(split_of().viewed(replace(view, seed=9))), whole)
    assert drawn == (str(getattr(view, "type", "noise")).endswith("noise"))


def test_workers_change_nothing():
    split = split_of().viewed(Noised())
    assert torch.equal(images_of(split, size=5, workers=2), images_of(split))


def test_a_view_is_part_of_the_fingerprint_and_of_the_protocol():
    split = split_of()
    prints = {split.viewed(view).fingerprint for view in (CLEAN, AUGMENTED, *VIEWS)}
    assert len(prints) == 2 + len(VIEWS)
    assert split.viewed(CLEAN).fingerprint == split.fingerprint
    assert split.viewed(Noised()).protocol["view"] == describe_view(Noised())
    assert split.protocol["view"] is None
    assert split.viewed(Noised()) is split.viewed(Noised())
    assert split.viewed(Noised()).viewed(CLEAN).fingerprint == split.fingerprint
    assert split.viewed(AUGMENTED).protocol["augmentation"]["mixup"] == 0.5


def test_views_of_one_name_from_two_files_are_two_views(tmp_path):
    from retinoscope.core.catalogue import load_file

    file = (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Dim:\n"
        "    seed: int = 0\n"
        "    def see(self, image, label, draw):\n        return image * {}, label\n"
    )
    found = []
    for place, factor in enumerate((0.5, 0.25)):
        path = tmp_path / f"view{place}.py"
        path.write_text(file.format(factor))
        found.append(split_of().viewed(load_file(path).Dim()).fingerprint)
    assert found[0] != found[1]


def test_only_training_images_come_augmented():
    with pytest.raises(NotApplicable, match=r"'test' augmented as in training; only training"):
        split_of(name="test").viewed(AUGMENTED)


def test_labels_are_seen_together_with_the_image():
    @dataclass(frozen=True)
    class Mirrored:
        """Turns an image around, and a class or a label map with it."""

        seed: int = 0

        def see(self, image, label, draw):
            return image[:, ::-1], label[:, ::-1] if np.ndim(label) else 9 - label

    split = split_of()
    (clean,), (seen,) = (s.batches(range(5), 5) for s in (split, split.viewed(Mirrored())))
    assert torch.equal(seen.images, clean.images.flip(-1))
    assert seen.labels.tolist() == [9 - label for label in clean.labels.tolist()]
    _, labels = Mirrored().see(np.zeros((2, 3, 3)), np.array([[0, 1, 2]] * 2), None)
    assert labels.tolist() == [[2, 1, 0]] * 2


def test_noise_has_the_deviation_that_it_says():
    grey = np.full((64, 64, 3), 0.5, np.float32)
    draw = np.random.default_rng(0)
    seen, label = Noised(std=0.05).see(grey, 3, draw)
    assert label == 3
    assert seen.std() == pytest.approx(0.05, rel=0.05)  # 12,288 draws: within 1 %, five times over
    far, _ = Noised(std=5.0, clip=False).see(grey, 3, draw)
    assert far.max() > 1


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_occlusion_hides_the_share_that_it_says(share):
    white = np.ones((28, 28, 3), np.float32)
    seen, _ = Occluded(share=share, grid=14).see(white, 0, np.random.default_rng(0))
    patches = seen.reshape(14, 2, 14, 2, 3).mean((1, 3, 4))
    assert set(np.unique(patches)) <= {0.0, 1.0}
    assert (patches == 0).mean() == share


def image(seed=0, side=12):
    return np.random.default_rng(seed).random((side, side, 3)).astype(np.float32)


def test_brightness_raises_the_value_and_keeps_hue_and_saturation():
    original = image()
    seen = CORRUPTIONS["brightness"](original, 2, np.random.default_rng())
    for a, b in zip(original.reshape(-1, 3), seen.reshape(-1, 3), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*a.tolist())
        expected = colorsys.hsv_to_rgb(h, s, min(1.0, v + 0.2))
        np.testing.assert_allclose(b, expected, atol=1e-6)
    black = CORRUPTIONS["brightness"](np.zeros((1, 1, 3), np.float32), 1, np.random.default_rng())
    np.testing.assert_allclose(black, 0.1, rtol=1e-6)


def test_contrast_keeps_the_mean_and_shrinks_the_spread():
    seen = CORRUPTIONS["contrast"](image(), 3, np.random.default_rng())
    np.testing.assert_allclose(seen.mean((0, 1)), image().mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(seen.std(), 0.2 * image().std(), rtol=0.05)


def test_shot_noise_has_the_variance_of_counts():
    grey = np.full((200, 200, 3), 0.4, np.float32)
    seen = CORRUPTIONS["shot_noise"](grey, 2, np.random.default_rng(0))
    assert seen.mean() == pytest.approx(0.4, rel=0.01)
    assert seen.var() == pytest.approx(0.4 / 25, rel=0.02)


def test_impulses_hit_the_share_that_they_should():
    grey = np.full((200, 200, 3), 0.4, np.float32)
    seen = CORRUPTIONS["impulse_noise"](grey, 5, np.random.default_rng(0))
    assert (seen != grey).mean() == pytest.approx(0.27, rel=0.02)
    assert (seen == 1).sum() == pytest.approx((seen == 0).sum(), rel=0.05)


def test_pixelate_repeats_pixels_of_a_smaller_image():
    seen = CORRUPTIONS["pixelate"](image(side=16), 2, np.random.default_rng())
    blocks = seen.reshape(8, 2, 8, 2, 3)
    assert (np.ptp(blocks, axis=(1, 3)) == 0).all()
    mean = image(side=16).reshape(8, 2, 8, 2, 3).mean((1, 3))
    np.testing.assert_allclose(blocks[:, 0, :, 0], mean, atol=1.5 / 255)  # rounded twice


@pytest.mark.parametrize("name", get_args(Corruption))
def test_severities_hurt_more_and_more(name):
    original = image(3, 32) * 0.5 + 0.25
    harm = [
        np.abs(Corrupted(name, severity).see(original, 0, np.random.default_rng(0))[0] - original)
        for severity in range(1, 6)
    ]
    means = [one.mean() for one in harm]
    assert means == sorted(means)
    assert means[0] > 0


@pytest.mark.parametrize("wrong", [
    lambda: Corrupted("fog_of_war"), lambda: Corrupted(severity=6), lambda: Noised(std=-1.0),
    lambda: Occluded(share=1.5), lambda: Occluded(grid=0), lambda: Noised(seed=2**60),
])  # fmt: skip
def test_values_that_cannot_be(wrong):
    with pytest.raises((ValueError, WrongSetting)):
        wrong()
