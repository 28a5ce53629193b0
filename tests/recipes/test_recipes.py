from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retinoscope.core.settings import WrongSetting
from retinoscope.recipes import UnknownRecipe, get_recipe, list_recipes, parse_recipe
from retinoscope.train.recipe import changed
from retinoscope.train.student import load_student
from retinoscope.train.train import train_model

TINY = Path(__file__).parent.parent / "train" / "tiny.py"


def photos(folder, classes: int, side: int):
    """A folder of class folders, two images each to train on."""
    random = np.random.default_rng(0)
    for split, count in (("train", 2), ("test", 1)):
        for label in range(classes):
            place = folder / split / f"c{label:03d}"
            place.mkdir(parents=True)
            for n in range(count):
                pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{n}.png")
    return str(folder)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_trains_two_steps(name, tmp_path):
    """Everything as it says, but for a small network, few images and batches of two."""
    data = photos(tmp_path / "data", 2, 40)
    recipe = changed(
        get_recipe(name),
        {
            "model": f"{TINY}:build:num_classes=2,img_size=32", "data": data, "batch": 2,
            "warmup": 1, "fraction": 1.0, "scored": 0,
        },
    )  # fmt: skip
    before, after = train_model(recipe, tmp_path / "out", until=2).rows
    assert (before["step"], after["step"]) == (0, 2)
    assert before["images"] == 2
    assert after["nll_train"] > 0


@pytest.mark.parametrize("name", [name for name in list_recipes() if "." not in name])
def test_the_network_of_every_recipe_is_built_with_branches_that_drop(name):
    recipe = get_recipe(name)
    loaded, way = load_student(recipe)
    rates = [m.drop_prob for m in loaded.model.modules() if getattr(m, "drop_prob", None)]
    assert max(rates, default=0.0) == pytest.approx(recipe.drop_path)
    assert loaded.trained is False
    assert way.model.startswith(recipe.model)


def test_the_strong_recipe_is_the_papers():
    recipe = get_recipe("cifar_strong")
    mixed = recipe.augmentation
    assert (recipe.lr, recipe.weight_decay, recipe.batch, recipe.clip) == (1.25e-4, 0.05, 96, 5.0)
    assert (recipe.epochs, recipe.warmup, recipe.schedule) == (300, 5, "cosine")
    assert (mixed.mixup, mixed.cutmix, mixed.switch, mixed.mixing) == (0.8, 1.0, 0.5, 1.0)
    assert (mixed.erasing, mixed.smoothing, recipe.drop_path) == (0.25, 0.1, 0.1)


def test_the_others_are_as_published():
    strong, sgd, deit = map(get_recipe, ("imagenet_strong", "imagenet_sgd", "deit"))
    assert (strong.batch, strong.clip, strong.augmentation.erasing) == (128, 0.0, 0.25)
    assert strong.augmentation.randaugment == "rand-m9-n2-mstd0.5"
    assert (sgd.optimiser, sgd.lr, sgd.weight_decay, sgd.warmup) == ("momentum", 0.1, 1e-4, 1)
    assert (sgd.epochs, sgd.milestones, sgd.factor) == (90, (30, 60, 80), 0.1)
    assert (deit.lr, deit.weight_decay, deit.decayed) == (1e-3, 0.05, "matrices")
    small = get_recipe("cifar_sgd")
    assert (small.epochs, small.milestones, small.factor, small.batch) == (
        200,
        (60, 120, 160),
        0.2,
        128,
    )
    plain = get_recipe("cifar_plain").augmentation
    assert not plain.soft
    assert (plain.crop, plain.flip, plain.randaugment) == (0.125, True, "")


def test_the_published_configuration_is_there_by_name():
    recipe = get_recipe("cifar_strong.original")
    mixed = recipe.augmentation
    assert (mixed.mixup, mixed.cutmix, mixed.erasing, recipe.drop_path) == (1.0, 0.8, 0.0, 0.0)
    assert recipe.idle_start


def test_settings_stand_behind_the_name():
    recipe = parse_recipe("micro:epochs=3,mixup=0.5,sam=0.05")
    assert (recipe.epochs, recipe.augmentation.mixup, recipe.sam) == (3, 0.5, 0.05)


def test_a_teacher_may_have_colons_of_its_own():
    recipe = parse_recipe("deit:distillation=hard,teacher=torchvision:regnet_y_16gf")
    assert recipe.teacher == "torchvision:regnet_y_16gf"


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(
        UnknownRecipe, match=r"no recipe 'cifar_strng'\. Did you mean 'cifar_strong'"
    ):
        parse_recipe("cifar_strng")
    with pytest.raises(UnknownRecipe, match=r"no recipe 'micro\.original'"):
        parse_recipe("micro.original")
    with pytest.raises(WrongSetting, match=r"micro has no field 'learning_rate'\."):
        parse_recipe("micro:learning_rate=1")


def test_every_docstring_gives_the_command():
    from importlib import import_module

    for name in {name.partition(".")[0] for name in list_recipes()}:
        text = import_module(f"retinoscope.recipes.{name}").__doc__ or ""
        assert f"retinoscope train {name}" in text, name
