import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from retinoscope import load_model, load_subject
from retinoscope.core.errors import (
    SurgeryRefused,
    UnknownModel,
    UnreadableFile,
    WeightsMismatch,
    WrongInput,
)
from retinoscope.core.specification import Specification
from retinoscope.models.anatomy import anatomy_of
from retinoscope.models.build import build_model
from retinoscope.models.built_file import Construction, read_construction

TINY = f"{Path(__file__).parents[1] / 'run' / 'tiny.py'}:build"
SHALLOW = "micro_preact_resnet:layers=(1,1,2,2)"
SURGERIES = ["build_up:msa_per_stage=(0,0,1,1),head_width=16", "mc_dropout:p=0.1,always=False"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    made = build_model(SHALLOW, SURGERIES, pretrained=False, seed=3)
    path = tmp_path_factory.mktemp("built") / "patient.safetensors"
    made.save(path)
    return made, path


def test_a_file_is_a_model(built):
    made, path = built
    loaded = load_model(str(path))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded.model(x), made.model.eval()(x))
    assert loaded.image == (3, 32, 32)
    assert loaded.trained is False
    assert loaded.weights.startswith("patient.safetensors, sha256 ")
    assert loaded.preprocessing.mean[0] == 0.4914
    assert made.before.sketch == "C|C↓|C↓C|C↓C"
    assert made.after.sketch == "C|C↓|C↓A|C↓A"


def test_it_says_what_became_of_the_weights(built):
    made, _ = built
    own = load_model(SHALLOW, pretrained=False, seed=3).model.state_dict()
    now = made.model.state_dict()
    assert {*made.kept, *made.new} == set(now)
    assert {*made.kept, *made.lost} == set(own)
    assert all(torch.equal(own[key], now[key]) for key in made.kept)
    assert "layer4.1.attn.qkv.weight" in made.new
    assert "layer4.1.conv1.weight" in made.lost
    assert "layer4.0.conv1.weight" in made.kept


def test_the_same_command_gives_the_same_file(built, tmp_path):
    again = build_model(SHALLOW, SURGERIES, pretrained=False, seed=3)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == built[1].read_bytes()
    other = build_model(SHALLOW, SURGERIES, pretrained=False, seed=4)
    assert not torch.equal(other.model.fc.weight, again.model.fc.weight)


def test_weights_of_another_file_and_fresh_ones(built, tmp_path):
    made, path = built
    state = {key: value + 1 for key, value in made.model.state_dict().items()}
    save_file(state, tmp_path / "snapshot.safetensors")
    loaded = load_model(str(path), weights=tmp_path / "snapshot.safetensors")
    assert torch.equal(loaded.model.fc.weight, made.model.fc.weight + 1)
    fresh = load_model(str(path), pretrained=False, seed=5)
    assert fresh.weights == "untrained, seed 5"
    assert not torch.equal(fresh.model.fc.weight, made.model.fc.weight)


def test_what_was_built_can_be_built_further(built, tmp_path):
    _, path = built
    further = build_model(str(path), ["spatial_smoothing:stages=(1,)"])
    assert Specification.parse(further.construction.model) == Specification.parse(SHALLOW)
    assert further.construction.surgeries[0] == (
        "build_up:msa_per_stage=(0, 0, 1, 1),head_width=16"
    )
    assert further.construction.surgeries[2] == "spatial_smoothing:stages=(1,)"
    further.save(tmp_path / "further.safetensors")
    x = torch.randn(2, 3, 32, 32)
    loaded = load_model(str(tmp_path / "further.safetensors")).model
    assert torch.equal(loaded(x), further.model.eval()(x))
    with pytest.raises(WrongInput, match="was built for images of 32×32, so it cannot be built"):
        build_model(str(path), ["mc_dropout"], size=(64, 64))


def test_a_model_of_ones_own_is_named_by_its_code(tmp_path, monkeypatch):
    """A file must not choose what code runs: whoever loads it names the code."""
    (tmp_path / "mine.py").write_text(Path(TINY.rpartition(":")[0]).read_text())
    monkeypatch.chdir(tmp_path)
    made = build_model("mine.py:build:img_size=16", ["mc_dropout:p=0.2,always=False"])
    made.save(tmp_path / "mine.safetensors")
    with pytest.raises(UnknownModel, match=r"name it yourself: mine.py:build:img_size=16 with --w"):
        load_model("mine.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = load_model("../mine.py:build:img_size=16", weights="../mine.safetensors")
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(loaded.model(x), made.model.eval()(x))
    with pytest.raises(WeightsMismatch, match=r"built from mine.py:build.*, not from micro_vit"):
        load_model("micro_vit", weights="../mine.safetensors")
    again = build_model(
        "../mine.py:build:img_size=16", ["mc_dropout"], weights="../mine.safetensors"
    )
    assert len(again.construction.surgeries) == 2


@pytest.mark.proof
def test_a_subject_finds_it_by_its_name(built):
    _, path = built
    subject = load_subject(SHALLOW, "cues", pretrained=False, images=4)
    assert subject.another(str(path)).anatomy.sketch == "C|C↓|C↓A|C↓A"
    assert load_subject(str(path), "cues", images=4).weights.startswith("patient.safetensors")


def test_files_that_do_not_say_or_say_it_wrongly(tmp_path, built):
    plain = tmp_path / "plain.safetensors"
    save_file({"w": torch.zeros(1)}, plain)
    assert read_construction(plain) is None
    with pytest.raises(UnknownModel, match="does not say of which model"):
        load_model(str(plain))
    with pytest.raises(UnknownModel, match=r"no file '.*none.safetensors' to build a model from"):
        load_model(str(tmp_path / "none.safetensors"))
    with pytest.raises(UnknownModel, match="is built as it was saved; it takes no options"):
        load_model(f"{built[1]}:num_classes=3")
    for text, says in (
        ("{}", "is damaged: KeyError"),
        ("nonsense", "is damaged: JSONDecodeError"),
        ("[1]", "is damaged: TypeError|AttributeError"),
        (json.dumps({"schema": 99}), "was built in the form 99, but this version reads 1"),
    ):
        save_file({"w": torch.zeros(1)}, plain, {"retinoscope": text})
        with pytest.raises(UnreadableFile, match=says):
            load_model(str(plain))
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(built[1].read_bytes()[:1000])
    with pytest.raises(UnreadableFile, match="cannot be read as weights"):
        load_model(str(torn))


def test_weights_that_do_not_fit_their_construction_are_refused(tmp_path, built):
    data = built[1].read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    way = json.loads(header["__metadata__"]["retinoscope"])
    assert Construction(**{k: v for k, v in way.items() if k != "schema"}).trained is False
    way["surgeries"] = way["surgeries"][1:]
    header["__metadata__"]["retinoscope"] = json.dumps(way)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(ValueError, match=r"does not fit PreActResNet: \d+ missing in the file"):
        load_model(str(changed))


def test_only_safetensors_are_written(built, tmp_path):
    with pytest.raises(WrongInput, match=r"is a .safetensors file; got .*x.pth"):
        built[0].save(tmp_path / "x.pth")
    with pytest.raises(SurgeryRefused, match="micro_vit: it has no conv unit"):
        build_model("micro_vit", ["build_up:msa_per_stage=(1,)"], pretrained=False)


def test_an_image_size_may_be_a_single_number():
    square = build_model("micro_vit:depth=1", ["mc_dropout"], size=32, pretrained=False)
    assert square.construction.size == (32, 32)
    with pytest.raises(WrongInput, match="0 is not an image size"):
        build_model("no_such_model", ["mc_dropout"], size=0)
    assert anatomy_of("test_vit", 160).image == (3, 160, 160)
