import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from retinoscope import load_model
from retinoscope.core.errors import UnknownModel, WeightsUnavailable
from retinoscope.models.anatomy import anatomy_of
from retinoscope.models.checkpoint import state_hash


def test_timm_by_name_with_options():
    loaded = load_model(
        "vit_tiny_patch16_224:img_size=32,patch_size=4,num_classes=10", pretrained=False
    )
    assert loaded.image == (3, 32, 32)
    assert loaded.weights == "untrained, seed 0"
    assert not loaded.model.training
    assert loaded.model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_random_weights_are_made_by_the_seed_and_leave_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = (load_model("test_vit", pretrained=False, seed=seed) for seed in (3, 3, 4))
    assert state_hash(a.model) == state_hash(b.model) != state_hash(c.model)
    assert c.weights == "untrained, seed 4"
    assert torch.equal(torch.get_rng_state(), before)


def test_torchvision_by_name():
    loaded = load_model("torchvision:resnet18:num_classes=7", pretrained=False)
    assert loaded.model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    assert load_model("torchvision:inception_v3", pretrained=False).image == (3, 299, 299)


def test_transformers_by_config_and_by_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=24, patch_size=8, num_labels=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(tmp_path)
    trained = load_model(f"hf:{tmp_path}")
    assert trained.image == (3, 24, 24)
    assert trained.weights == f"transformers {tmp_path}"
    assert state_hash(trained.model) == state_hash(model)
    untrained = load_model(f"hf:{tmp_path}/config.json", pretrained=False)
    assert untrained.weights == "untrained, seed 0"
    assert state_hash(untrained.model) != state_hash(model)
    assert anatomy_of(f"hf:{tmp_path}").sketch == "AMAM"
    with pytest.raises(
        WeightsUnavailable, match=r"a configuration has no weights.*--untrained.*--weights"
    ):
        load_model(f"hf:{tmp_path}/config.json")


OWN = """
import torch
from helper import WIDTH

class Net(torch.nn.Sequential):
    pass

def build(classes=5):
    torch.manual_seed(0)
    conv, linear = torch.nn.Conv2d(3, WIDTH, 4, 4), torch.nn.Linear(WIDTH * 64, classes)
    return Net(conv, torch.nn.Flatten(), linear)

def wrong():
    return 42
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "helper.py").write_text("WIDTH = 6\n")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def test_own_file(own):
    loaded = load_model(f"{own}:build:classes=3")
    assert loaded.weights.startswith("own.py:build, weights ")
    assert loaded.model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


ANY_SIZE = """
import timm
import torch
from torch import nn

def cifar(img_size=None):
    layers = [nn.Conv2d(3, 4, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)]
    return nn.Sequential(*layers)

def grey():
    return nn.Sequential(nn.Conv2d(1, 1, 5), nn.Flatten(), nn.Linear(576, 10))

def declared(img_size=48):
    return cifar()

def configured():
    return timm.create_model("test_resnet")

def other_size():
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=1)
"""


@pytest.fixture
def any_size(tmp_path):
    (tmp_path / "any.py").write_text(ANY_SIZE)
    return f"{tmp_path / 'any.py'}:"


def test_what_is_assumed_about_images_is_said(any_size):
    loaded = load_model(f"{any_size}cifar")
    assert loaded.image == (3, 32, 32)
    assert loaded.preprocessing.size == (32, 32)
    size, normalisation = loaded.assumed
    assert size.startswith("size 32×32 (assumed: at 224 px its last map would be 224×224")
    assert normalisation == "mean and std of ImageNet"
    grey = load_model(f"{any_size}grey")
    assert grey.image == (1, 28, 28)
    assert grey.assumed[0].startswith("size 28×28 (read from the network")


def test_what_is_known_is_not_assumed(any_size):
    for name, side in (("cifar:img_size=40", 40), ("declared", 48)):
        loaded = load_model(any_size + name)
        assert loaded.image == (3, side, side)
        assert loaded.assumed == ("mean and std of ImageNet",)
    assert load_model(f"{any_size}configured").assumed == ()
    assert load_model(f"{any_size}configured").image == (3, 160, 160)
    # Its configuration says 224, which is not so: it was built for other images.
    other = load_model(f"{any_size}other_size")
    assert other.image == (3, 32, 32)
    assert other.assumed[0].startswith("size 32×32 (read from the network")
    assert load_model("test_vit", pretrained=False).assumed == ()
    assert load_model("torchvision:resnet18", pretrained=False).assumed == ()


def test_what_is_given_is_not_assumed(any_size):
    given = load_model(f"{any_size}cifar", size=24, mean=0.5, std=(0.1, 0.2, 0.3))
    assert given.image == (3, 24, 24)
    assert (given.preprocessing.mean, given.preprocessing.std) == ((0.5,), (0.1, 0.2, 0.3))
    assert given.assumed == ()
    assert load_model(f"{any_size}cifar", size=24, mean=0.5).assumed == ("std of ImageNet",)


def test_own_file_mistakes(own):
    with pytest.raises(UnknownModel, match=r"has no function 'buidl'. Did you mean 'build'"):
        load_model(f"{own}:buidl")
    with pytest.raises(UnknownModel, match=r"returned int, not an nn.Module"):
        load_model(f"{own}:wrong")
    with pytest.raises(UnknownModel, match="There is no file"):
        load_model("nowhere/own.py:build")
    with pytest.raises(UnknownModel, match="names a file but no function"):
        load_model(str(own))
    with pytest.raises(UnknownModel, match="cannot be built with these options"):
        load_model(f"{own}:build:depth=3")


def test_a_checkpoint_of_ones_own(tmp_path):
    source = load_model("test_resnet", pretrained=False, seed=9)
    save_file(source.model.state_dict(), tmp_path / "mine.safetensors")
    loaded = load_model("test_resnet", weights=tmp_path / "mine.safetensors")
    assert state_hash(loaded.model) == state_hash(source.model)
    assert loaded.weights.startswith("mine.safetensors, sha256 ")


def test_unknown_names_offer_the_nearest_three():
    with pytest.raises(UnknownModel) as caught:
        load_model("resnet51")
    assert str(caught.value).count(" or ") == 2
    assert "'resnet50'" in str(caught.value)
    with pytest.raises(UnknownModel, match=r"torchvision has no model 'resnet51'.*'resnet50'"):
        load_model("torchvision:resnet51")
    with pytest.raises(UnknownModel, match="cannot be built with these options"):
        load_model("test_vit:no_such_option=3", pretrained=False)


def test_weights_that_cannot_be_had_name_both_ways_out():
    with pytest.raises(WeightsUnavailable, match=r"no weights tagged 'nothing'. It has: .*a1_in1k"):
        load_model("resnet50.nothing")
    with pytest.raises(
        WeightsUnavailable, match=r"timm has none for this model.*--untrained.*--weights"
    ):
        load_model(next(m for m in timm.list_models() if not timm.list_pretrained(f"{m}.*")))


def test_a_failed_download_names_both_ways_out(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(WeightsUnavailable) as caught:
        load_model("resnet18")
    text = str(caught.value)
    assert "The weights of resnet18 cannot be had: no route to host." in text
    assert "--untrained" in text
    assert "--weights" in text


def test_an_anatomy_says_which_weights():
    anatomy = anatomy_of("test_resnet", seed=3)
    assert anatomy.weights == "untrained, seed 3"
    assert anatomy.model == "test_resnet"
    assert json.loads(anatomy.to_json())["weights"] == "untrained, seed 3"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def build():\n    raise KeyError('depth')\n", r"fails: KeyError: 'depth'.*own.py:2"),
        ("def build(:\n", r"fails: SyntaxError.*own.py:1"),
        ("import nothing_of_that_name\n", r"fails: ModuleNotFoundError.*own.py:1"),
    ],
)
def test_code_of_the_users_that_fails_is_named_with_its_line(tmp_path, content, says):
    (tmp_path / "own.py").write_text(content)
    with pytest.raises(UnknownModel, match=says):
        load_model(f"{tmp_path / 'own.py'}:build")


def test_weights_are_known_to_be_trained_or_not(tmp_path):
    assert load_model("test_vit", pretrained=False).trained is False
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef build(): return nn.Conv2d(3, 4, 3)\n"
    )
    assert load_model(f"{tmp_path / 'own.py'}:build").trained is None
