import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import timm
import torch
from torch import nn

from retinoscope import dissect
from retinoscope.core.errors import SurgeryRefused
from retinoscope.layers.dropout import MonteCarloDropout
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import parse_surgery
from retinoscope.surgery.mc_dropout import McDropout
from sampling import PROOF

SIZE = 32
VIT = {"img_size": SIZE, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}


class Twist(nn.Module):
    """A residual unit with an only map, done by a function."""

    def __init__(self, width):
        super().__init__()
        self.fc, self.qkv = nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)

    def forward(self, x):
        return x + self.qkv(self.fc(x)).tanh()


class Odd(nn.Module):
    """A CNN whose names say the opposite; its second block has two maps."""

    def __init__(self):
        super().__init__()
        self.attn, self.head = nn.Conv2d(3, 8, 4, 4), Twist(8)
        self.norm = nn.ModuleList([nn.Conv2d(8, 6, 1), nn.Conv2d(6, 8, 3, 1, 1)])
        self.stem = nn.Linear(8, 5)

    def forward(self, x):
        x = self.head(self.attn(x))
        x = x + self.norm[1](self.norm[0](x).relu())
        return self.stem(x.mean((2, 3)))


BUILDERS = {
    "cnn": lambda: timm.create_model("test_resnet", num_classes=5),
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=5, **VIT),
    "own": Odd,
}


@pytest.fixture(params=BUILDERS, scope="module")
def model(request):
    return draw_at_order_one(BUILDERS[request.param]()).eval()


def images():
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@cache
def anatomy_of(model):
    return dissect(model, SIZE)


def operated(model, **settings):
    return McDropout(**settings).operate(model, anatomy_of(model))


@torch.no_grad()
def logits(model, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model(images())


def dropouts(model):
    return [m for m in model.modules() if isinstance(m, MonteCarloDropout)]


def test_nothing_dropped_is_the_original_bit_for_bit(model):
    patient = operated(model, p=0.0)
    assert dropouts(patient)
    assert torch.equal(logits(patient), logits(model))


def test_draws_differ_in_train_and_in_eval_mode(model):
    patient = operated(model, p=0.3)
    for mode in (True, False):
        patient.train(mode)
        assert torch.equal(logits(patient, 1), logits(patient, 1))
        assert not torch.allclose(logits(patient, 1), logits(patient, 2), rtol=1e-3)


def test_ordinary_dropout_is_silent_in_eval_mode(model):
    patient = operated(model, p=0.3, always=False)
    assert not patient.training
    assert torch.equal(logits(patient), logits(model))
    patient.train()
    assert not torch.allclose(logits(patient, 1), logits(patient, 2), rtol=1e-3)


@PROOF  # of a ViT in test_contract.py
def test_keys_and_the_original_are_untouched(model):
    before = copy.deepcopy(model.state_dict())
    classes = [type(module) for module in model.modules()]
    patient = operated(model)
    assert list(patient.state_dict()) == list(before)
    patient.train()(images()).square().mean().backward()
    torch.optim.SGD(patient.parameters(), lr=0.1).step()
    assert any(not torch.equal(value, before[k]) for k, value in patient.state_dict().items())
    assert all(torch.equal(value, before[k]) for k, value in model.state_dict().items())
    assert [type(module) for module in model.modules()] == classes
    assert all(parameter.grad is None for parameter in model.parameters())


@PROOF
def test_copies_and_pickles_draw_alike(model):
    patient = operated(model)
    expected = logits(patient, 3)
    for twin in (copy.deepcopy(patient), pickle.loads(pickle.dumps(patient))):
        assert torch.equal(logits(twin, 3), expected)
        assert len(dropouts(twin)) == len(dropouts(patient))
        assert not {*map(id, twin.modules())} & {*map(id, patient.modules())}


@PROOF
def test_the_patient_has_the_same_anatomy(model):
    kinds = [unit.kind for unit in dissect(operated(model), SIZE)]
    assert kinds == [unit.kind for unit in anatomy_of(model)]


@torch.no_grad()
def seeded(layer, x, seed=5):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return layer(x)


def test_stands_before_the_last_map_of_each_mlp_and_nowhere_else():
    model = draw_at_order_one(BUILDERS["vit"]()).eval()
    patient = operated(model, p=0.5)
    assert len(dropouts(patient)) == 1
    reference = copy.deepcopy(model)
    for block in reference.blocks:
        block.mlp.fc2.register_forward_pre_hook(
            lambda _, given: nn.functional.dropout(given[0], 0.5, training=True)
        )
    assert torch.equal(seeded(patient, images()), seeded(reference, images()))
    assert not torch.equal(seeded(patient, images()), logits(model))


def test_stands_behind_a_unit_that_has_a_single_map():
    model = draw_at_order_one(Odd()).eval()
    patient = operated(model, p=0.5)
    reference = copy.deepcopy(model)

    def drop(x):
        return nn.functional.dropout(x, 0.5, training=True)

    reference.head.register_forward_hook(lambda _, __, given: drop(given))
    reference.norm[1].register_forward_pre_hook(lambda _, given: drop(given[0]))
    assert torch.equal(seeded(patient, images()), seeded(reference, images()))


def test_stands_behind_the_map_where_no_module_holds_the_state():
    class Bare(Odd):
        def forward(self, x):
            x = self.attn(x)
            x = x + self.head.fc(x).relu()
            return self.stem(x.mean((2, 3)))

    model = draw_at_order_one(Bare()).eval()
    reference = copy.deepcopy(model)
    reference.head.fc.register_forward_hook(
        lambda _, __, given: nn.functional.dropout(given, 0.5, training=True)
    )
    assert torch.equal(seeded(operated(model, p=0.5), images()), seeded(reference, images()))


def test_a_model_that_keeps_what_it_computed_can_be_copied():
    """LeViT keeps its biases between passes; with gradients on, they are no leaves."""

    class Keeping(Odd):
        def __init__(self):
            super().__init__()
            self.kept, self.one = {}, None

        def forward(self, x):
            self.kept.setdefault("gain", 2 * self.stem.weight)
            self.one = self.stem.bias * 3
            return super().forward(x) @ self.kept["gain"] @ self.kept["gain"].T

    model = draw_at_order_one(Keeping()).eval()
    anatomy = dissect(model, SIZE)
    model(images())
    patient = McDropout(0.0).operate(model, anatomy)
    assert torch.equal(logits(patient), logits(model))
    assert patient.kept["gain"] is not model.kept["gain"]


def test_refusals():
    class Function(Odd):
        def forward(self, x):
            x = self.attn(x)
            weights = [conv.weight for conv in self.norm]
            y = nn.functional.conv2d(nn.functional.conv2d(x, weights[0]).relu(), weights[1])
            return self.stem((x + nn.functional.pad(y, (1, 1, 1, 1))).mean((2, 3)))

    with pytest.raises(SurgeryRefused, match=r"one of its learned maps is not a separate module"):
        operated(Function())
    model = BUILDERS["vit"]()
    part = dissect(model, SIZE).where(kind=["stem", "attention"])
    with pytest.raises(SurgeryRefused, match=r"no conv or mlp unit. It has: 1 stem"):
        McDropout().operate(model, part)
    with pytest.raises(ValueError, match="p is from 0 to below 1; got 1"):
        McDropout(1.0)
    assert parse_surgery("mc_dropout:always=False") == McDropout(always=False)


def test_says_which_units_it_touches():
    model = BUILDERS["vit"]()
    anatomy = dissect(model, SIZE)
    surgery = McDropout(0.1)
    expected = [unit.name for unit in anatomy.where(kind=["conv", "mlp"])]
    assert surgery.touched(model) == []
    assert surgery.touched(surgery.operate(model, anatomy)) == expected
    part = anatomy.where(kind=["mlp"])
    half = replace(part, units=part.units[:1])
    assert surgery.touched(surgery.operate(model, half)) == [half.units[0].name]
