import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.cue_shares import CueShares, cue_shares

CLASSES = st.integers(0, 4)
IMAGES = st.lists(
    st.tuples(CLASSES, CLASSES, CLASSES).filter(lambda image: image[1] != image[2]),
    min_size=1,
    max_size=40,
)


def test_known_answer():
    predicted = np.array([0, 0, 0, 1, 2, 2, 9, 9])
    shape = np.array([0, 0, 0, 0, 2, 0, 0, 1])
    texture = np.array([1, 1, 1, 1, 1, 2, 1, 0])
    found = cue_shares(predicted, shape, texture)
    assert found == CueShares(shape=0.5, texture=0.25, neither=0.25, bias=2 / 3, images=8)


def test_no_bias_where_neither_cue_was_named():
    found = cue_shares(np.array([7, 7]), np.array([0, 1]), np.array([1, 0]))
    assert found == CueShares(shape=0, texture=0, neither=1, bias=None, images=2)


@pytest.mark.parametrize(("follows", "bias"), [("shape", 1.0), ("texture", 0.0)])
def test_the_two_ends(follows, bias):
    cues = {"shape": np.array([0, 1, 2]), "texture": np.array([2, 0, 1])}
    assert cue_shares(cues[follows], **cues).bias == bias


@settings(deadline=None, max_examples=100)
@given(IMAGES)
def test_equals_a_loop(images):
    counts = {"shape": 0, "texture": 0, "neither": 0}
    for predicted, shape, texture in images:
        named = {shape: "shape", texture: "texture"}
        counts[named.get(predicted, "neither")] += 1
    found = cue_shares(*np.array(images).T)
    assert [found.shape, found.texture, found.neither] == [
        counts[cue] / len(images) for cue in ("shape", "texture", "neither")
    ]
    named = counts["shape"] + counts["texture"]
    assert found.bias == (counts["shape"] / named if named else None)
    assert found.shape + found.texture + found.neither == pytest.approx(1)


@settings(deadline=None, max_examples=50)
@given(IMAGES, st.randoms(use_true_random=False), st.permutations(range(5)))
def test_invariant_to_order_and_names_of_classes(images, random, renamed):
    found = cue_shares(*np.array(images).T)
    shuffled = random.sample(images, len(images))
    assert cue_shares(*np.array(shuffled).T) == found
    assert cue_shares(*np.array(renamed)[np.array(images)].T) == found


@settings(deadline=None, max_examples=50)
@given(IMAGES)
def test_exchanging_the_cues_exchanges_the_shares(images):
    predicted, shape, texture = np.array(images).T
    found, exchanged = cue_shares(predicted, shape, texture), cue_shares(predicted, texture, shape)
    assert (exchanged.shape, exchanged.texture) == (found.texture, found.shape)
    if found.bias is not None:
        assert exchanged.bias == pytest.approx(1 - found.bias)


def test_images_without_a_conflict_are_refused():
    message = r"2 of 3 images .* \(the first is image 1, of class 4\)\. Remove them"
    with pytest.raises(ValueError, match=message):
        cue_shares(np.array([0, 4, 5]), np.array([0, 4, 5]), np.array([1, 4, 5]))


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"got \(2,\), \(3,\) and \(2,\)"):
        cue_shares(np.zeros(2), np.zeros(3), np.ones(2))
    with pytest.raises(ValueError, match=r"got \(2, 1\)"):
        cue_shares(np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="of zero images"):
        cue_shares(np.zeros(0), np.zeros(0), np.ones(0))
