import json

import pytest
import timm
import torch

from retinoscope.models.checkpoint import state_hash
from retinoscope.models.load import load_model
from retinoscope.recipes import get_recipe
from retinoscope.train.curves import read_curves
from retinoscope.train.images import find_images
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe, changed
from retinoscope.train.score import score
from retinoscope.train.student import Student
from retinoscope.zoo import NAMES, SNAPSHOTS, folder_of
from sampling import sampled


def described(name: str) -> dict:
    return json.loads((folder_of(name) / "training.json").read_text())


def test_the_files_are_small():
    sizes = [f.stat().st_size for name in NAMES for f in folder_of(name).iterdir()]
    assert max(sizes) <= 0.7e6
    assert sum(sizes) <= 10e6


@pytest.mark.parametrize("name", NAMES)
def test_it_was_made_by_the_committed_recipe(name):
    made = Recipe.from_plain(described(name)["recipe"])
    known = [changed(get_recipe(recipe), {"model": name}) for recipe in ("micro", "micro.slow")]
    assert made in known
    assert len(read_curves(folder_of(name)).epoch) == 1 + made.warmup + made.epochs


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_gives_the_first_weights_again(name):
    kept = json.loads((folder_of(name) / "init.json").read_text())
    assert state_hash(load_model(name, pretrained=False, seed=0).model) == kept["weights"]
    assert state_hash(load_model(name, pretrained=False, seed=1).model) != kept["weights"]


@pytest.mark.parametrize("name", NAMES)
def test_it_has_learned(name):
    """Far from chance, which is 0.1: what is studied should know something."""
    last = json.loads((folder_of(name) / "log.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] > 0.4


@pytest.mark.parametrize(
    "name", sampled(["micro_resnet", "micro_vit", "micro_swin"], "micro_resnet")
)
def test_the_weights_score_what_their_log_says(name):
    last = json.loads((folder_of(name) / "log.jsonl").read_text().splitlines()[-1])
    loaded = load_model(name)
    recipe = Recipe.from_plain(described(name)["recipe"])
    _, test = find_images(recipe, loaded.preprocessing, (3, 10))
    assert test is not None
    found = score(Student(loaded), test, Processes(), print)
    # Another processor may round otherwise: an image or two may change sides.
    assert found["accuracy"] == pytest.approx(last["accuracy"], abs=2 / 2000)
    assert found["nll"] == pytest.approx(last["nll"], rel=1e-4)


def test_timm_knows_them_by_their_tags():
    models = {tag: timm.create_model(f"micro_vit.{tag}", pretrained=True) for tag in SNAPSHOTS}
    plain = timm.create_model("micro_vit", pretrained=True)
    assert torch.equal(plain.head.weight, models["cues"].head.weight)
    assert not torch.equal(plain.head.weight, models["cues_warmup"].head.weight)
    assert {f"micro_vit.{tag}" for tag in SNAPSHOTS} == set(timm.list_pretrained("micro_vit.*"))


def test_a_loaded_one_says_where_its_weights_come_from():
    loaded = load_model("micro_resnet")
    assert loaded.weights == "retinoscope micro_resnet.cues"
    assert loaded.trained is True
    assert loaded.history == folder_of("micro_resnet")
    assert load_model("micro_resnet.cues_warmup").weights == "retinoscope micro_resnet.cues_warmup"
    assert load_model("micro_resnet", pretrained=False).history is None
