from __future__ import annotations

import numpy as np
import pytest
from timm.data import ImageNetInfo

from retinoscope.data.classes import map_classes


def mapped(*arguments, **options):
    found = map_classes(*arguments, **options)
    assert found is not None
    assert found.dtype == np.int64
    return found.tolist()


@pytest.mark.parametrize(
    ("outputs", "subset"),
    [(1000, "imagenet-1k"), (11821, "imagenet-12k"), (21841, "imagenet-22k"),
     (21843, "imagenet-21k-goog")],
)  # fmt: skip
def test_wordnet_ids(outputs, subset):
    ids = ImageNetInfo(subset).label_names()
    assert len(ids) == outputs
    some = [ids[7], "n99999999", ids[outputs - 1], "other"]
    assert mapped(some, outputs) == [7, -1, outputs - 1, -1]


def test_wordnet_ids_with_a_word_behind_them():
    assert mapped(["n02085620-Chihuahua", "n01440764_tench", "n014407640"], 1000) == [151, 0, -1]


def test_all_of_imagenet_is_in_order():
    assert mapped(ImageNetInfo().label_names(), 1000) == list(range(1000))


def test_words():
    found = ["Great White Shark", "tinca_tinca", "jack-o'-lantern", "unicorn", "orange"]
    assert mapped(found, 1000) == [2, 0, 607, -1, 950]


def test_several_synonyms_in_the_data():
    assert mapped(["anything, tench", "tench, Tinca tinca"], 1000) == [0, 0]


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("crane", -1),  # the bird and the machine are both called so and nothing else
        ("maillot", 638),
        ("maillot, tank suit", 639),
        ("cardigan", 474),
        ("gong", 577),
        ("panther", -1),  # a late synonym of two
    ],
)
def test_ambiguous_words(name, output):
    assert mapped([name, "tench"], 1000) == [output, 0]


def test_no_word_fits():
    assert map_classes(["unicorn", "dragon"], 1000) is None
    assert map_classes(["crane"], 1000) is None
    assert map_classes(["n99999999"], 1000) is None


def test_as_many_classes_as_outputs():
    assert mapped(["cat", "dog", "emu"], 3) == [0, 1, 2]
    assert map_classes(["cat", "dog"], 3) is None


def test_a_thousand_classes_of_another_kind_are_in_the_models_order():
    found = [f"species {number}" for number in range(998)]
    assert mapped([*found, "tench", "orange"], 1000) == list(range(1000))
    words = ImageNetInfo().label_descriptions()
    assert mapped([words[999], *words[:999]], 1000)[:3] == [999, 0, 1]


def test_the_models_own_names_come_first():
    known = ["Dog", "house-cat, cat", "Emu"]
    assert mapped(["cat", "dog", "emu"], 3, known) == [1, 0, 2]
    assert mapped(["emu", "gnu"], 3, known) == [2, -1]
    names = [f"thing {number}" for number in range(999)]
    assert mapped(["tench"], 1000, [*names, "tench"]) == [999]


def test_names_beyond_the_outputs_are_left_aside():
    assert mapped(["a", "b"], 2, known=["a", "x", "b"]) == [0, -1]


@pytest.mark.parametrize("known", [["LABEL_0", "LABEL_1"], ["0", "1"], ["class 0", "class 1"]])
def test_numbers_are_no_names(known):
    assert mapped(["cat", "dog"], 2, known) == [0, 1]
    assert mapped(["n01440764"], 1000, [f"LABEL_{number}" for number in range(1000)]) == [0]
    assert mapped(["1", "0"], 2, ["cat", "dog"]) == [0, 1]


def test_names_that_do_not_fit_the_models_are_not_comparable():
    assert map_classes(["cat", "dog"], 2, known=["tench", "golf ball"]) is None


def test_names_without_letters_fit_nothing():
    assert map_classes(["?"], 2, known=["!", "-"]) is None
