import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import rand_augment_transform
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch.nn.functional import one_hot, pad

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.settings import WrongSetting
from retinoscope.data.augment import Augmentation
from retinoscope.data.augmenting import preserved, reseeded
from retinoscope.data.cues import Cues
from retinoscope.data.split import ImageSplit

PLAIN = Preprocessing(size=(32, 32))
SEEDS = (0, 1, 17, 2**32 - 1)
POLICY = "rand-m9-n2-mstd1.0"
STRONG = Augmentation(randaugment=POLICY, erasing=0.25, mixup=1.0, cutmix=0.8, smoothing=0.1)
STILL = {"crop": 0.0, "flip": False}


def photo(seed=0, height=32, width=32):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def draws(seed, index, stream=0, epoch=0):
    """The stream of random numbers that a view is drawn from, by the formula."""
    key = [seed * 256 + stream, epoch * 2**32 + index]
    return np.random.Generator(np.random.Philox(key=key))


def seed_all(number):
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    torch.manual_seed(number)


def normalised(image, preprocessing):
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    return (image - mean) / std


def states():
    """Of the global generators."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [32, 20])
def test_a_view_is_a_padded_cut_and_perhaps_a_mirror(seed, channels, size):
    from retinoscope.data.prepare import prepare

    wanted = Preprocessing(size=(size, size), crop_pct=1.0 if size == 32 else 0.9)
    augmentation = Augmentation(crop=0.25)
    border = size // 4
    for index in range(6):
        drawn = draws(seed, index, 5, 2)
        top, left = (int(drawn.integers(2 * border + 1)) for _ in range(2))
        image = prepare(photo(index), wanted, channels).float() / 255
        expected = pad(image, (border,) * 4)[:, top : top + size, left : left + size]
        expected = expected.flip(-1) if drawn.random() < 0.5 else expected
        found = augmentation.view(
            photo(index), wanted, seed=seed, index=index, epoch=2, stream=5, channels=channels
        )
        assert torch.equal(found, expected)
        assert found.is_contiguous()


def test_nothing_on_gives_the_image_itself_in_unit_range():
    image = photo()
    image.setflags(write=False)
    seen = Augmentation(**STILL).view(image, PLAIN, seed=0, index=0)
    assert torch.equal(seen, torch.tensor(image / 255, dtype=torch.float32).permute(2, 0, 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_resized_crops_are_timms(seed):
    image = photo(seed % 100, 50, 70)
    wanted = Preprocessing(size=(24, 32), crop_pct=0.9, interpolation="bilinear")
    peer = RandomResizedCropAndInterpolation((24, 32), scale=(0.2, 0.8), interpolation="bilinear")
    for crop in (0.0, 0.5):  # which is not used
        drawn = draws(seed, 7)
        mirrored = drawn.random() < 0.5
        seed_all(int(drawn.integers(2**63)))
        expected = torch.tensor(np.array(peer(Image.fromarray(image)))).permute(2, 0, 1) / 255
        found = Augmentation(crop=crop, resized=(0.2, 0.8)).view(image, wanted, seed=seed, index=7)
        assert torch.equal(found, expected.flip(-1) if mirrored else expected)


@pytest.mark.parametrize("policy", [POLICY, "rand-m5-n3-mstd0.5-inc1", "rand-m9-tweights-p1"])
def test_randaugment_is_timms_and_changes_pixels(policy):
    fill = tuple(round(255 * value) for value in PLAIN.mean)
    augmentation = Augmentation(**STILL, randaugment=policy)
    changed = 0
    for seed in SEEDS:
        for index in range(12):
            image = photo(index)
            settings = {"translate_const": 14, "img_mean": fill, "interpolation": Image.BICUBIC}
            seed_all(int(draws(seed, index).integers(2**63)))
            expected = rand_augment_transform(policy, settings)(Image.fromarray(image))
            found = augmentation.view(image, PLAIN, seed=seed, index=index)
            assert torch.equal(found, torch.tensor(np.array(expected)).permute(2, 0, 1) / 255)
            changed += not np.array_equal(np.array(expected), image)
    # Each of two layers or more acts with probability 1/2 at least, and hardly one leaves noise
    # as it is: 3/4 of 48 views, less four standard deviations.
    assert changed > 36 - 4 * 3


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_erasing_is_timms_once_normalised(probability):
    peer = RandomErasing(probability, mode="const", device="cpu")
    for seed in SEEDS:
        for index in range(8):
            drawn = draws(seed, index)
            image = torch.tensor(photo(index)).permute(2, 0, 1) / 255
            seed_all(int(drawn.integers(2**63)))
            expected = peer(normalised(image, PLAIN))
            augmentation = Augmentation(**STILL, erasing=probability)
            found = augmentation.view(photo(index), PLAIN, seed=seed, index=index)
            assert torch.equal(normalised(found, PLAIN), expected)
            outside = (expected != 0).all(0)
            assert torch.equal(found[:, outside], image[:, outside])
            assert probability < 1 or not outside.all()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_together_is_timms_training_transform(seed):
    wanted = Preprocessing(size=(32, 32), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))
    peer = create_transform(
        (3, 32, 32), is_training=True, scale=(0.08, 1.0), hflip=0.0, color_jitter=None,
        auto_augment=POLICY, interpolation="bicubic", mean=wanted.mean, std=wanted.std,
        re_prob=0.5, re_mode="const",
    )  # fmt: skip
    augmentation = Augmentation(flip=False, resized=(0.08, 1.0), randaugment=POLICY, erasing=0.5)
    for index in range(10):
        image = photo(index, 60, 45)
        seed_all(int(draws(seed, index, epoch=3).integers(2**63)))
        expected = peer(Image.fromarray(image))
        found = augmentation.view(image, wanted, seed=seed, index=index, epoch=3)
        # The same operations, but our zeros come from a subtraction.
        torch.testing.assert_close(normalised(found, wanted), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("mean", [(0.4,), (0.3, 0.4, 0.5)])
def test_grey_models_are_augmented_in_grey(mean):
    wanted = Preprocessing(size=(32, 32), mean=mean)
    augmentation = Augmentation(**STILL, resized=(0.5, 1.0), randaugment="rand-n9-p1", erasing=1.0)
    for index in range(20):
        seen = augmentation.view(photo(index, 40, 40), wanted, seed=0, index=index, channels=1)
        assert seen.shape == (1, 32, 32)
        assert (seen == torch.tensor(0.4)).any()
        assert 0 <= seen.min() <= seen.max() <= 1
    for asked in (Augmentation(), augmentation):
        with pytest.raises(WrongInput, match="takes images of 4 channels"):
            asked.view(photo(), wanted, seed=0, index=0, channels=4)


@pytest.mark.parametrize("augmentation", [Augmentation(), STRONG])
def test_a_view_depends_on_its_numbers_alone_and_on_each_of_them(augmentation):
    def views(order, **numbers):
        seen = {
            i: augmentation.view(photo(i), PLAIN, **{"seed": 4, "index": i} | numbers)
            for i in order
        }
        return torch.stack([seen[i] for i in sorted(seen)])

    once = views(range(12))
    seed_all(99)  # must not matter
    with preserved():
        assert torch.equal(once, views(reversed(range(12))))
    for name in ("seed", "index", "epoch", "stream"):
        assert not torch.equal(once, views(range(12), **{name: 1}))


@pytest.mark.parametrize("seed", SEEDS)
def test_global_generators_stay_as_they_were(seed):
    images, labels = torch.rand(8, 3, 32, 32), torch.arange(8)
    seed_all(seed)
    random.gauss(0, 1)  # each makes two numbers and keeps one for later
    np.random.randn()  # noqa: NPY002
    before = states()
    STRONG.view(photo(), PLAIN, seed=seed, index=0)
    for step in range(4):
        STRONG.mix(images, labels, 10, seed=seed, step=step)
        STRONG.mixed(photo, PLAIN, seed=seed, index=step, total=9)
    assert states() == before
    with pytest.raises(KeyError), preserved(), reseeded(5):
        raise KeyError(random.random(), np.random.rand(), torch.rand(1))  # noqa: NPY002
    assert states() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_probes_repeat_for_any_size_and_number_of_workers(workers):
    split = ImageSplit(
        "train", Cues("train", 16), np.arange(30), Preprocessing(size=(16, 16)), 3,
        np.arange(10), 10, augmentation=STRONG, seed=5,
    )  # fmt: skip
    (whole,) = split.batches(range(30), 30)
    parts = list(split.batches(range(29, -1, -1), 7, workers))
    assert torch.equal(torch.cat([b.images for b in parts]).flip(0), whole.images)
    assert torch.equal(torch.cat([b.targets for b in parts]).flip(0), whole.targets)
    torch.testing.assert_close(whole.targets.sum(1), torch.ones(30))


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_and_mirrors_are_equally_frequent(seed):
    image = np.zeros((16, 16, 3), np.uint8)
    image[8, 8] = 255  # a point that no cut loses
    wanted = Preprocessing(size=(16, 16))
    total = 2000
    cells, mirrored = np.zeros((5, 5)), 0
    straight, either = Augmentation(flip=False), Augmentation()
    for index in range(total):
        still = straight.view(image, wanted, seed=seed, index=index)[0]
        row, column = divmod(int(still.argmax()), 16)
        cells[row - 6, column - 6] += 1
        mirrored += not torch.equal(either.view(image, wanted, seed=seed, index=index)[0], still)
    expected = total / 25
    # χ² of 24 degrees of freedom stays below 51 in 999 of 1000 cases.
    assert ((cells - expected) ** 2 / expected).sum() < 51
    # The axis lies between two pixels, so each mirror shows; four standard deviations.
    assert abs(mirrored / total - 0.5) < 4 * np.sqrt(0.25 / total)


@pytest.mark.parametrize("seed", SEEDS)
def test_as_many_images_are_erased_as_was_asked(seed):
    augmentation, white = Augmentation(**STILL, erasing=0.25), np.full((32, 32, 3), 255, np.uint8)
    total = 1000
    views = [augmentation.view(white, PLAIN, seed=seed, index=i) for i in range(total)]
    shares = np.array([float((view[0] < 1).float().mean()) for view in views])
    # Four standard deviations of a binomial share.
    assert abs((shares > 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / total)
    assert 0.01 < shares[shares > 0].min() < shares.max() < 0.4  # 2 % to 1/3, in whole pixels


def batch(total=8, seed=0):
    torch.manual_seed(seed)
    return torch.rand(total, 3, 12, 10), torch.randint(0, 7, (total,))


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"mixup": 0.8},
        {"cutmix": 1.0, "smoothing": 0.1},
        {"mixup": 1.0, "cutmix": 0.8, "switch": 0.3, "mixing": 0.7, "smoothing": 0.2},
    ],
)
def test_batches_are_mixed_as_timm_does_it(settings, rank):
    images, labels = batch()
    given = images.clone(), labels.clone()
    peer = Mixup(
        settings.get("mixup", 0.0), settings.get("cutmix", 0.0), prob=settings.get("mixing", 1.0),
        switch_prob=settings.get("switch", 0.5), label_smoothing=settings.get("smoothing", 0.0),
        num_classes=7,
    )  # fmt: skip
    seen = []
    for seed in SEEDS:
        for step in range(6):
            seed_all(int(draws(seed, step, 2, rank).integers(2**63)))
            expected = peer(images.clone(), labels)
            found = Augmentation(**settings).mix(images, labels, 7, seed=seed, step=step, rank=rank)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])
            seen.append(found[0])
    assert torch.equal(images, given[0])
    assert torch.equal(labels, given[1])
    mixed = sum(not torch.equal(images, other) for other in seen)
    assert mixed > (0.5 if "mixing" in settings else 0.8) * len(seen)  # a box can be empty


def test_where_nothing_is_soft_a_batch_comes_back_itself():
    images, labels = batch()
    for augmentation in (Augmentation(), Augmentation(mixup=1.0, cutmix=1.0, mixing=0.0)):
        assert not augmentation.soft
        same = augmentation.mix(images, labels, 7, seed=0, step=0)
        assert same[0] is images
        assert same[1] is labels


def test_smoothing_alone_softens_targets_only():
    images, labels = batch()
    same, targets = Augmentation(smoothing=0.2).mix(images, labels, 7, seed=0, step=0)
    assert same is images
    torch.testing.assert_close(targets, 0.8 * one_hot(labels, 7).float() + 0.2 / 7)


@pytest.mark.parametrize("settings", [{"mixup": 1.0}, {"cutmix": 1.0}])
@pytest.mark.parametrize("total", [1, 2, 5, 8])
def test_every_image_of_a_batch_has_a_partner_whose_share_its_target_tells(settings, total):
    """Each image is one colour and one class, so pixels and targets say the same."""
    labels = torch.arange(total)
    images = one_hot(labels, 8).float()[:, :, None, None].expand(total, 8, 9, 7)
    for step in range(12):
        mixed, targets = Augmentation(**settings).mix(images, labels, 8, seed=1, step=step)
        assert mixed.shape == images.shape
        torch.testing.assert_close(mixed.mean((2, 3)), targets, atol=1e-6, rtol=0)
        partners = [1, 4, 3, 2, 1] if total == 5 else list(range(total))[::-1]
        share = targets[0, 0]
        expected = share * one_hot(labels, 8) + (1 - share) * one_hot(torch.tensor(partners), 8)
        torch.testing.assert_close(targets, expected, atol=1e-6, rtol=0)


def test_another_step_seed_or_process_mixes_otherwise():
    images, labels = batch()
    numbers = {"seed": 1, "step": 2, "rank": 0}
    first, again, *others = (
        STRONG.mix(images, labels, 7, **numbers | other)[1]
        for other in ({}, {}, {"seed": 2}, {"step": 3}, {"rank": 1})
    )
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in others)


def one_colour_each(place):
    return np.full((32, 32, 3), place, np.uint8)


@pytest.mark.parametrize("seed", SEEDS)
def test_probes_see_a_box_of_the_partner_and_know_its_area(seed):
    augmentation = Augmentation(**STILL, cutmix=1.0)
    boxes = 0
    for index in range(30):
        seen, partner, share = augmentation.mixed(
            one_colour_each, PLAIN, seed=seed, index=index, total=200
        )
        theirs = seen[0] != torch.tensor(float(index)) / 255
        if partner == index or not theirs.any():
            continue
        boxes += 1
        assert share == pytest.approx(1 - theirs.float().mean().item(), abs=1e-6)
        assert torch.equal(seen[0, theirs].unique(), torch.tensor([float(partner)]) / 255)
        rows, columns = theirs.any(1).sum(), theirs.any(0).sum()
        assert rows * columns == theirs.sum()
        target = augmentation.target((index, partner), share, 200)
        assert target[index].item() == pytest.approx(share, abs=1e-6)
    assert boxes > 20


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_probes_see_mixing_and_cutmix_as_often_as_asked(seed):
    augmentation = Augmentation(**STILL, mixup=1.0, cutmix=1.0, mixing=0.6, switch=0.3)
    total = 600
    counts = {"none": 0, "cut": 0, "mixed": 0}
    for index in range(total):
        seen, partner, share = augmentation.mixed(
            lambda place: np.full((32, 32, 3), 255 * (place < 1000), np.uint8),
            PLAIN, seed=seed, index=index, total=2**31,
        )  # fmt: skip
        assert (partner == index) == (share == 1.0 and partner < 1000)
        pure = ((seen == 0) | (seen == 1)).all()
        counts["none" if partner == index else "cut" if pure else "mixed"] += 1
    for kind, expected in (("none", 0.4), ("cut", 0.6 * 0.3), ("mixed", 0.6 * 0.7)):
        bound = 4 * np.sqrt(expected * (1 - expected) / total)  # four standard deviations
        assert abs(counts[kind] / total - expected) < bound


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"crop": 0.6}, r"crop is from 0 to 0\.5; got 0\.6"),
        ({"resized": (0.5,)}, r"two areas such as \(0\.08, 1\.0\).*got \(0\.5,\)"),
        ({"resized": (0.5, 0.2)}, "resized is two areas"),
        ({"resized": (0.0, 1.0)}, "each above 0 and up to 1; got"),
        ({"erasing": 1.1}, "erasing is from 0 to 1"),
        ({"mixup": -1}, r"mixup is 0 or more; got -1\.0"),
        ({"cutmix": -0.1}, "cutmix is 0 or more"),
        ({"mixing": 2.0}, "mixing is from 0 to 1"),
        ({"switch": -1.0}, "switch is from 0 to 1"),
        (
            {"smoothing": 1.0, "crop": 1.0},
            r"crop is from .*smoothing is from 0 to below 1; got 1\.0",
        ),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, words):
    with pytest.raises(WrongInput, match=words):
        Augmentation(**settings)


def test_settings_of_another_type_are_refused():
    with pytest.raises(WrongSetting, match="augmentation: crop is a number; got 'much'"):
        Augmentation(crop="much")


@pytest.mark.parametrize(
    "policy",
    ["rand", POLICY, "rand-m9-mmax20-p0.5", "rand-n9-m3-inc1", "rand-t3aw-m7-mstd101", "rand-p1.0"],
)
def test_policies_that_we_take_are_taken_by_timm(policy):
    assert Augmentation(randaugment=policy).randaugment == policy
    image = Image.fromarray(photo())
    for _ in range(20):
        assert rand_augment_transform(policy, {"img_mean": (1, 2, 3)})(image).size == (32, 32)


@pytest.mark.parametrize(
    "policy",
    ["augmix-m5", "rand-m9-x3", "rand-n0", "rand-n", "rand-p2", "rand-tfoo", " rand", "m9"],
)
def test_policies_that_timm_would_misread_are_refused(policy):
    with pytest.raises(WrongInput, match=r"such as rand-m9-n2-mstd1\.0"):
        Augmentation(randaugment=policy)


def test_settings_survive_a_file():
    augmentation = Augmentation(resized=(0.08, 1.0), randaugment=POLICY, cutmix=1.0, flip=False)
    assert Augmentation(**json.loads(json.dumps(augmentation.to_plain()))) == augmentation
    assert hash(Augmentation(crop=0)) == hash(Augmentation(crop=0.0))


def test_settings_are_listed_without_torch():
    code = "import sys, retinoscope.data.augment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
