"""How often models are exported, which is nearly all the time that a surgery takes."""

from dataclasses import dataclass

import pytest
import timm
import torch

from retinoscope import dissect, operate
from retinoscope.core.unit import Kind
from retinoscope.models.build import build_model
from retinoscope.surgery import list_surgeries, parse_surgery
from retinoscope.surgery.table import Table

VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 5}


def vit():
    return timm.create_model("vit_tiny_patch16_224", **VIT).eval()


def preact():
    return timm.create_model("micro_preact_resnet", layers=(1, 1, 2, 2)).eval()


CASES = {
    "build_up:msa_per_stage=(0,0,1,1),head_width=16": preact,
    "context_broadcasting": vit,
    "eigen_attention:sign=+": vit,
    "gap_head": vit,
    "localise:kernel=3": vit,
    "mc_dropout": vit,
    "spatial_smoothing": preact,
}


def test_all_surgeries_are_counted():
    assert {text.partition(":")[0] for text in CASES} == set(list_surgeries())


@pytest.mark.parametrize("surgery", CASES)
def test_one_export(surgery, exports):
    model = CASES[surgery]()
    operate(model, surgery, example=32)
    assert len(exports) == 1
    parse_surgery(surgery).operate(model, dissect(model, 32))  # which looks anew
    assert len(exports) == 2


@pytest.mark.proof
def test_one_export_of_vit_tiny(exports):
    """Nor does what was built need one to say what it is made of."""
    made = build_model("vit_tiny_patch16_224", ["localise:kernel=5"], pretrained=False)
    assert made.after == dissect(made.model, 224, name="vit_tiny_patch16_224")
    assert exports == ["VisionTransformer"] * 2  # the last by this test


def test_what_was_built_is_exported_when_it_is_asked_for(exports):
    name = "micro_preact_resnet:layers=(1,1,2,2)"
    made = build_model(name, ["spatial_smoothing", "mc_dropout"], pretrained=False)
    assert len(exports) == 2  # for each surgery
    assert made.before.sketch == "C|C↓|C↓C|C↓C"
    assert len(exports) == 2
    assert made.after is made.after
    assert made.after.sketch == "CP|C↓P|C↓CP|C↓CP"
    assert len(exports) == 3
    plain = build_model(name, [], pretrained=False)
    assert plain.after.units == plain.before.units
    assert len(exports) == 4


def test_one_export_for_each_network_of_a_chain(exports):
    model = vit()
    patient = operate(model, "context_broadcasting", "localise:kernel=3", example=32)
    assert len(exports) == 2
    once = operate(model, "localise:kernel=3", "context_broadcasting", example=32)
    assert len(exports) == 2  # the model is known, and what localise makes of it
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(patient(x), once(x))


@dataclass(frozen=True)
class Own:
    """A surgery as anyone may write it."""

    def operate(self, model, anatomy):
        table = Table(model, anatomy, "own")
        for unit in table.units((Kind.MLP,)):
            table.graft(table.learned(unit)[-1].module, torch.nn.Identity(), "after")
        return table.patient


def test_surgeries_of_others(exports):
    model, x = vit(), torch.randn(1, 3, 32, 32)
    assert torch.equal(operate(model, Own(), example=32)(x), model(x))
    assert len(exports) == 1
