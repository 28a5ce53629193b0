import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinoscope.core.settings import WrongSetting
from retinoscope.data.augment import Augmentation
from retinoscope.train.recipe import Recipe, changed, differences


def test_every_field_is_explained():
    for field in (*fields(Recipe), *fields(Augmentation)):
        assert field.metadata.get("help", "").endswith((".", "…")), field.name


@given(
    lr=st.floats(0, 10), warmup=st.integers(0, 20), mixup=st.floats(0, 3),
    milestones=st.sets(st.integers(1, 90), max_size=3).map(lambda found: tuple(sorted(found))),
)  # fmt: skip
def test_a_recipe_survives_json(lr, warmup, mixup, milestones):
    recipe = Recipe(
        lr=lr, warmup=warmup, milestones=milestones,
        augmentation=Augmentation(mixup=mixup, resized=(0.1, 1.0)),
    )  # fmt: skip
    assert Recipe.from_plain(json.loads(json.dumps(recipe.to_plain()))) == recipe


def test_a_setting_that_came_later_is_as_by_default():
    plain = Recipe(lr=0.5).to_plain()
    del plain["sam"], plain["augmentation"]["cutmix"]
    assert Recipe.from_plain(plain) == Recipe(lr=0.5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epoch": 3}, "has no field 'epoch'. Did you mean 'epochs'"),
        ({"mixup_alpha": 1}, "Did you mean 'mixup'"),
        ({"lr": "fast"}, "lr is a number"),
        ({"batch": 0}, "micro: batch is 1 or more; got 0"),
        ({"fraction": 0.0}, "above 0 and up to 1"),
        ({"schedule": "step"}, "schedule is one of cosine, steps, constant"),
        ({"schedule": "steps"}, "without milestones"),
        ({"milestones": (3, 1)}, "milestones rise from 1 on"),
        ({"factor": -1.0}, r"factor is above 0; got -1\.0"),
        ({"distillation": "hard"}, "without a teacher"),
        ({"teacher": "resnet18"}, "without distillation"),
        ({"crop": 0.7}, "crop is from 0 to 0"),
    ],
)
def test_wrong_settings_are_refused(settings, says):
    with pytest.raises(ValueError, match=says) as error:
        changed(Recipe(), settings, "micro")
    assert isinstance(error.value, WrongSetting) or "augmentation" in str(error.value)


def test_settings_of_the_augmentation_are_named_like_the_others():
    other = changed(Recipe(), {"epochs": 3, "mixup": 0.8, "resized": (0.2, 1.0)})
    assert other == replace(
        Recipe(epochs=3), augmentation=Augmentation(mixup=0.8, resized=(0.2, 1.0))
    )


def test_differences_are_told_with_both_values():
    other = changed(Recipe(), {"lr": 1.0, "mixup": 0.8})
    assert differences(Recipe().to_plain(), other.to_plain()) == [
        "lr: 0.000125 → 1.0",
        "augmentation.mixup: 0.0 → 0.8",
    ]
    assert differences(other.to_plain(), other.to_plain()) == []
