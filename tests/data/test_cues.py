"""Cues: known areas and patterns, the same bits always, and two cues a network can learn."""

from __future__ import annotations

import hashlib
import pickle
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from retinoscope.data import cues_shapes, cues_textures
from retinoscope.data.cues import SPLITS, Cues, ImpossibleCues
from retinoscope.data.cues_shapes import SHAPES, inside, silhouettes
from retinoscope.data.cues_textures import TEXTURES, weaves
from retinoscope.data.source import UnknownData
from retinoscope.models.load import load_model
from sampling import PROOF

CHECKSUM = "a82baa92bef55238662d6bfaad5cc78150b803bb53a0e9e31e72d03dbe7e60c3"
POINTS = 397  # a prime: no point of a grid lies exactly on an edge of a pattern


def plane(extent, points=POINTS):
    """Coordinates of a square grid from minus to plus ``extent``, u to the right and v down."""
    line = ((2 * np.arange(points) + 1) / points - 1).astype(np.float32) * np.float32(extent)
    v, u = np.meshgrid(line, line, indexing="ij")
    return u, v


def drawn(name, extent=4):
    """Where a texture has its first colour."""
    return getattr(cues_textures, name)(*plane(extent), np.array(5, np.uint32)) > 0


def test_bits_are_what_they_always_were():
    digest = hashlib.sha256()
    for split in SPLITS:
        for size, images in ((32, 40), ((48, 32), 5)):
            cues = Cues(split, size, images=images)
            digest.update(cues.read_many(range(images)).tobytes())
            for cue in ("shape", "texture"):
                digest.update(cues.attributes[cue].astype("<i8").tobytes())
    assert digest.hexdigest() == CHECKSUM, (
        "The images have changed. If that is meant, raise VERSION in cues.py, so that nothing "
        "measured on the old ones is taken for the new, and put the new checksum here."
    )


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("disc", np.pi * 0.8**2),
        ("square", 1.44**2),
        ("triangle", 0.75 * 3**0.5),
        ("plus", 2 * 1.7 * 0.58 - 0.58**2),
        ("ring", np.pi * (0.86**2 - 0.43**2)),
        ("hexagram", 3**0.5),
        ("hourglass", 4 * (0.375 * 0.82**2 + 0.15 * 0.82)),
        ("corner", 1.56**2 - 1.02**2),
        ("arch", np.pi / 2 * (0.81**2 - 0.31**2) + 2 * 0.5 * 0.88),
    ],
)
def test_silhouettes_cover_the_area_of_their_geometry(name, area):
    distance = getattr(cues_shapes, name)(*plane(1.25))
    # Straight edges are taken as distances: corners are rounded by less than a pixel each.
    assert inside(distance, 2.5 / POINTS).mean() * 2.5**2 == pytest.approx(area, rel=5e-3)


def test_a_crescent_is_a_disc_without_a_disc():
    u, v = plane(1.25)
    moon = cues_shapes.crescent(u, v) < 0
    full, bite = u**2 + v**2 < 0.88**2, (u - 0.46) ** 2 + v**2 < 0.72**2
    assert (moon != (full & ~bite)).mean() < 1e-4  # points exactly on an outline
    assert 0.15 < moon.sum() / full.sum() < 0.5


def test_no_silhouette_turns_into_another():
    u, v = plane(1.25, 80)
    limit = 2 * np.arctan(0.2)
    still = [shape(u, v) < 0 for shape in SHAPES]
    for angle in np.linspace(-2 * limit, 2 * limit, 9):
        c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        turned = [shape(c * u + s * v, c * v - s * u) < 0 for shape in SHAPES]
        for one, other in combinations(range(10), 2):
            common = (still[one] & turned[other]).sum() / (still[one] | turned[other]).sum()
            # A square inside a disc of nearly its area is the closest pair.
            assert common < 0.92, (SHAPES[one].__name__, SHAPES[other].__name__, angle)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("dots", np.pi * 0.31**2),
        ("mesh", 1 - 0.7**2),
        ("bricks", 1 - 0.72 * 0.86),
        *((name, 0.5) for name in "rows columns diagonals checks ripples zigzag blotches".split()),
    ],
)
def test_textures_have_the_share_of_their_geometry(name, share):
    # Twenty periods; ripples and blotches are not periodic and come near it only.
    assert drawn(name, extent=10).mean() == pytest.approx(share, abs=0.03)


def test_stripes_run_as_they_are_called():
    rows, diagonals = drawn("rows"), drawn("diagonals")
    assert (rows == rows[:, :1]).all()
    assert not (rows == rows[:1]).all()
    assert (drawn("columns") == rows.T).all()
    assert (diagonals == diagonals.T).all()
    assert (np.diff(rows[:, 0].astype(int)) != 0).sum() == 16  # eight periods


def test_each_row_of_bricks_is_shifted_by_half_a_brick():
    u, v = plane(3)
    key = np.array(0, np.uint32)
    wall = cues_textures.bricks(u, v, key)
    # Differences of rounding only: the distance is 0.64 at most.
    np.testing.assert_allclose(cues_textures.bricks(u + 1, v + 1, key), wall, atol=1e-5)
    np.testing.assert_allclose(cues_textures.bricks(u, v + 2, key), wall, atol=1e-5)
    assert np.abs(cues_textures.bricks(u, v + 1, key) - wall).max() > 0.3


def test_blotches_are_smooth_and_differ_between_keys():
    u, v = plane(4)
    one, other = (cues_textures.blotches(u, v, np.array(key, np.uint32)) for key in (1, 2))
    # The field is steepest where it goes from 0 to 1 in a cell: slope 1.5 times 1.6 cells.
    assert np.abs(np.diff(one, axis=0)).max() <= 2.41 * 8 / POINTS
    assert np.abs(np.diff(one, axis=1)).max() <= 2.41 * 8 / POINTS
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.5


def test_no_shape_covers_everything_and_no_texture_has_one_colour():
    u, v = (axis[None, None].repeat(2, 0) for axis in plane(2, 20))
    kinds, pixel = np.array([-1, 0]), np.full((2, 1, 1, 1), 0.2, np.float32)
    cover = silhouettes(kinds, u, v, pixel)
    share = weaves(kinds, u, v, np.zeros((2, 1, 1, 1), np.uint32), pixel)
    for part in (cover, share):
        assert (part[0] == 1).all()
        assert part[1].min() == 0


@pytest.mark.parametrize("split", SPLITS)
def test_an_image_is_the_same_alone_and_in_any_batch(split):
    cues = Cues(split, size=(24, 40), images=300)
    together = cues.read_many(np.arange(300))
    assert together.dtype == np.uint8
    assert together.shape == (300, 24, 40, 3)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(cues.read_many(order), together[order])
    for index in (0, 7, 299):
        np.testing.assert_array_equal(cues.read(index), together[index])
    fewer = Cues(split, size=(24, 40), images=8)
    np.testing.assert_array_equal(fewer.read_many(range(8)), together[:8])
    np.testing.assert_array_equal(fewer.labels, cues.labels[:8])
    assert cues.read_many([]).shape == (0, 24, 40, 3)


def test_seeds_splits_and_indices_give_other_images():
    several = [Cues(split, 16, seed) for split in SPLITS for seed in (0, 1, -1)]
    images = [image.tobytes() for cues in several for image in cues.read_many(range(20))]
    assert len(set(images)) == len(images)
    assert len({cues.labels[:50].tobytes() for cues in several}) == len(several)


@pytest.mark.parametrize(("split", "images"), SPLITS.items())
def test_classes_are_balanced_in_every_ten_images(split, images):
    cues = Cues(split)
    assert len(cues) == len(cues.labels) == images
    assert cues.labels.dtype == np.int64
    assert (np.sort(cues.labels.reshape(-1, 10)) == np.arange(10)).all()
    # In an order without pattern, each class comes first in a tenth of the tens; five deviations.
    first = np.bincount(cues.labels[::10], minlength=10) / (images / 10)
    assert np.abs(first - 0.1).max() < 5 * (0.09 / (images / 10)) ** 0.5
    assert len(Cues(split, images=13).labels) == 13


@pytest.mark.parametrize(
    ("split", "shape", "texture"),
    [("train", 1, 1), ("test", 1, 1), ("shape_only", 1, 0), ("texture_only", 0, 1)],
)
def test_labels_say_what_the_cues_are(split, shape, texture):
    cues = Cues(split)
    for cue, there in (("shape", shape), ("texture", texture)):
        np.testing.assert_array_equal(cues.attributes[cue], cues.labels if there else -1)


def test_in_conflict_the_texture_is_any_of_the_nine_others():
    cues = Cues("conflict")
    shape, texture = cues.attributes["shape"], cues.attributes["texture"]
    np.testing.assert_array_equal(cues.labels, shape)
    counts = np.bincount(shape * 10 + texture, minlength=100).reshape(10, 10)
    assert (np.diag(counts) == 0).all()
    # 1000 images of each shape over nine textures: 111 each, within five deviations.
    others = counts[~np.eye(10, dtype=bool)]
    assert np.abs(others - 1000 / 9).max() < 5 * (1000 * (1 / 9) * (8 / 9)) ** 0.5


def test_what_is_pictured_is_what_the_attributes_say():
    cues = Cues("texture_only", 64, images=200)
    images = cues.read_many(range(200)).astype(float)
    across = np.abs(np.diff(images, axis=2)).mean((1, 2, 3))
    down = np.abs(np.diff(images, axis=1)).mean((1, 2, 3))
    names = np.array([texture.__name__ for texture in TEXTURES])[cues.labels]
    # A turn of at most 11 degrees, and noise that is alike in both directions.
    assert (down > across)[names == "rows"].all()
    assert (across > down)[names == "columns"].all()


@pytest.mark.parametrize("split", SPLITS)
def test_another_resolution_shows_the_same_picture(split):
    small = Cues(split, 32).read_many(range(50)).astype(float)
    for size in ((64, 64), (64, 96)):
        large = Cues(split, size).read_many(range(50)).astype(float)
        blocks = large.reshape(50, 32, size[0] // 32, 32, size[1] // 32, 3).mean((2, 4))
        # Noise is up to ±5.5 % of 255 on average, so 7 in the mean; edges add a little.
        assert np.abs(blocks - small).mean() < 12
        assert np.abs(blocks[1:] - small[:-1]).mean() > 30


def test_the_contract_of_a_source():
    cues = Cues("test", seed=3)
    assert len(cues.classes) == 10
    assert cues.classes[0] == "disc + blotches"
    assert cues.name(17) == "cues/test/17"
    assert cues.fingerprint == "cues version 1, test, 32×32, seed 3, 10000 images"
    assert Cues("test", (32, 32), seed=3, images=10_000).fingerprint == cues.fingerprint
    others = [Cues("train", seed=3), Cues("test"), Cues("test", 33, 3), Cues("test", 32, 3, 9)]
    assert len({other.fingerprint for other in [cues, *others]}) == 5
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(cues)).read(5), cues.read(5))
    with pytest.raises(ValueError, match="read-only"):
        cues.labels[0] = 1


def test_unknown_splits_are_refused_with_those_that_exist():
    with pytest.raises(
        UnknownData,
        match=r"no split 'shape-only'\. Did you mean 'shape_only'\? There are: train, test, "
        r"conflict, shape_only, texture_only\.",
    ):
        Cues("shape-only")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"size": size}, "in size .* Give a height and a width") for size in (0, (9, 0), (9, 9, 3))]
    + [({"images": images}, f"{images} images of cues. Give at least 1") for images in (0, -5)],
)
def test_impossible_sizes_and_numbers_are_refused(options, message):
    with pytest.raises(ImpossibleCues, match=message):
        Cues(**options)


@pytest.mark.parametrize("index", [-1, 20])
def test_indices_out_of_range_are_refused(index):
    with pytest.raises(IndexError, match=rf"There is no cues/test/{index} among 20 images\."):
        Cues("test", images=20).read_many([3, index])


def tensors(cues):
    images = torch.from_numpy(cues.read_many(range(len(cues)))).permute(0, 3, 1, 2)
    return (images.float() / 64 - 2).contiguous(), torch.tensor(cues.labels)


def fit(model, steps, rate):
    """Train on the first images of ``train`` in batches of 128."""
    images, labels = tensors(Cues("train", images=8192))
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    epochs = [torch.randperm(len(images)).split(128) for _ in range(-(-steps // 64))]
    for batch in [batch for epoch in epochs for batch in epoch][:steps]:
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def agreement(model, split, cue, images=2000):
    """How often the model answers the class of this cue."""
    cues = Cues(split, images=images)
    with torch.no_grad():
        answers = model(tensors(cues)[0]).argmax(1).numpy()
    return (answers == cues.attributes[cue]).mean()


@pytest.fixture(scope="module")
def small_network():
    torch.manual_seed(0)
    layers = []
    for given, made, stride in ((3, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(given, made, 3, stride, 1), nn.BatchNorm2d(made), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return fit(nn.Sequential(*layers), 450, 4e-3)


@PROOF
def test_a_small_network_learns_much_but_not_all_in_a_minute(small_network):
    assert 0.60 < agreement(small_network, "test", "shape") < 0.98


@PROOF
def test_each_cue_alone_is_enough_to_answer_and_both_have_a_say(small_network):
    assert agreement(small_network, "shape_only", "shape") > 0.25
    assert agreement(small_network, "texture_only", "texture") > 0.25
    assert agreement(small_network, "conflict", "shape") > 0.12
    assert agreement(small_network, "conflict", "texture") > 0.12


def test_a_packaged_network_answers_by_each_cue_alone_and_by_both():
    loaded = load_model("micro_resnet")
    wants = loaded.preprocessing
    mean, std = (torch.tensor(values)[:, None, None] for values in (wants.mean, wants.std))

    def answers(images):
        return loaded.model(((images + 2) * 64 / 255 - mean) / std)

    for split, cue, least in (
        ("test", "shape", 0.40), ("shape_only", "shape", 0.15), ("texture_only", "texture", 0.15),
        ("conflict", "shape", 0.12), ("conflict", "texture", 0.12),
    ):  # fmt: skip
        assert least < agreement(answers, split, cue, images=500) < 0.98, (split, cue)


@PROOF
def test_pixels_alone_do_not_tell_the_class():
    torch.manual_seed(0)
    linear = fit(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)), 450, 1e-3)
    assert agreement(linear, "test", "shape") < 0.40
