"""What holds for every surgery there is."""

import copy
import pickle
from dataclasses import fields

import pytest
import timm
import torch
from torch import nn

import retinoscope.models  # noqa: F401  registers the micro networks
from retinoscope import dissect
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import list_surgeries, parse_surgery, write_surgery

SIZE = 32
VIT = {"img_size": SIZE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
EXAMPLES = {
    "build_up:msa_per_stage=(0,0,1,1),head_width=8": "cnn",
    "context_broadcasting:where=both": "vit",
    "eigen_attention:sign=-": "vit",
    "gap_head": "vit",
    "localise:kernel=3": "vit",
    "mc_dropout:p=0.3": "vit",
    "spatial_smoothing:prob=bn_tanh": "cnn",
}
NEUTRAL = {
    "context_broadcasting:scale=0": "vit",
    "localise:kernel=7": "vit",  # covers the map of 4 × 4
    "mc_dropout:p=0": "vit",
    "spatial_smoothing:kernel=1,prob=off": "cnn",
}
REPLACES = ("build_up", "eigen_attention")
"""These put modules in the place of others, whose keys are gone."""


@pytest.fixture(scope="module")
def patients():
    """A small CNN and a small ViT in double precision, with their anatomies."""
    cnn = timm.create_model("micro_preact_resnet", layers=(1, 1, 2, 2), num_classes=5)
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, **VIT)
    models = {"cnn": cnn, "vit": vit}
    ready = {name: draw_at_order_one(model).double().eval() for name, model in models.items()}
    return {name: (model, dissect(model, SIZE)) for name, model in ready.items()}


def logits(model, seed=0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model(x)


def test_every_surgery_has_an_example():
    assert sorted(text.partition(":")[0] for text in EXAMPLES) == list_surgeries()


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_surgery_keeps_the_contract(text, patients):
    surgery = parse_surgery(text)
    assert parse_surgery(write_surgery(surgery)) == surgery
    assert all(field.metadata.get("help") for field in fields(surgery))
    model, anatomy = patients[EXAMPLES[text]]
    before, classes = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    patient = surgery.operate(model, anatomy)

    # It matters, and a copy of it is its own.
    found = logits(patient)
    assert found.isfinite().all()
    assert not torch.allclose(found, logits(model), rtol=1e-3)
    assert not patient.training
    for twin in (copy.deepcopy(patient), pickle.loads(pickle.dumps(patient))):
        assert torch.equal(logits(twin), found)
        assert not {*map(id, twin.modules())} & {*map(id, patient.modules())}

    # Keys are kept, and what is not replaced keeps its weights.
    state = patient.state_dict()
    if text.partition(":")[0] not in REPLACES:
        assert set(before) <= set(state)
        assert all(torch.equal(state[key], before[key]) for key in before)
    assert {value.dtype for value in state.values()} <= {torch.float64, torch.int64}

    # It can be exported, and its units are those of the original, where they are not its own.
    after = dissect(patient, SIZE)
    kept = [unit for unit in after if unit.kind != "pool"]
    assert len(kept) == len(anatomy)
    if not text.startswith("build_up"):
        assert [(u.name, u.kind) for u in kept] == [(u.name, u.kind) for u in anatomy]

    # It trains; the original stays as it was.
    optimiser = torch.optim.SGD(patient.parameters(), lr=0.1)
    nn.functional.cross_entropy(logits(patient.train()), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in patient.parameters())
    start = copy.deepcopy(patient.state_dict())
    optimiser.step()
    moved = sum(not torch.equal(value, start[key]) for key, value in patient.state_dict().items())
    assert moved > len(start) / 4
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [type(module) for module in model.modules()] == classes
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("text", NEUTRAL)
def test_neutral_settings_change_nothing(text, patients):
    model, anatomy = patients[NEUTRAL[text]]
    patient = parse_surgery(text).operate(model, anatomy)
    # float64, sums in another order
    torch.testing.assert_close(logits(patient), logits(model), rtol=0, atol=1e-12)
