"""Modules that are called otherwise than with one tensor that gives one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from retinoscope import dissect, operate
from retinoscope.core.errors import SurgeryRefused, WrongInput
from retinoscope.core.settings import WrongSetting
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery.build_up import BuildUp
from retinoscope.surgery.calls import observe
from retinoscope.surgery.mc_dropout import McDropout


class Scaled(nn.Module):
    """A convolution whose state is its second argument."""

    def __init__(self, channels):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(channels, channels, 3, 3) / channels)

    def forward(self, scale, x):
        return F.conv2d(x, self.kernel, padding=1) * scale


class Odd(nn.Module):
    """Blocks that pass their state about in the ways of ``how``."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.how == "flag":
                x = block(x, True)
            elif self.how == "keyword":
                x = block(scale=2.0, x=x)
            else:
                given = block(x)
                x = (
                    given["x"]
                    if self.how == "dict"
                    else given[-1]
                    if self.how != "plain"
                    else given
                )
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), Scaled(8)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, flag=False, scale=1.0):
        y = x + scale * self.two(self.scale, F.relu(self.one(x)))
        return {"pair": (x, y), "dict": {"x": y}, "tuple": (torch.zeros(1), y)}.get(self.how, y)


def test_calls_are_seen_as_they_are():
    calls = observe(Odd("keyword").eval(), (16, 16))
    assert [seen.key for seen in calls["blocks.0"].takes] == ["x"]
    assert calls["blocks.0"].arguments == 2
    assert [seen.key for seen in calls["blocks.0.two"].takes] == [1]  # the scale is a parameter
    assert [seen.key for seen in calls["blocks.0.two"].gives] == [None]
    pair = observe(Odd("pair").eval(), (16, 16))["blocks.1"]
    assert [seen.key for seen in pair.gives] == [0, 1]


def test_a_part_meets_the_state_in_whatever_argument_it_comes():
    model = Odd("plain").eval()
    patient = operate(model, McDropout(0.5), example=16)
    seen = []
    patient.blocks[0].two.graft_before[0].register_forward_hook(
        lambda module, given, answer: seen.append(tuple(given[0].shape))
    )
    patient(torch.randn(2, 3, 16, 16))
    assert seen == [(2, 8, 8, 8)]


@pytest.mark.parametrize("how", ["plain", "dict", "tuple", "keyword", "flag"])
def test_a_part_meets_the_state_wherever_it_lies_in_the_answer(how):
    model = draw_at_order_one(Odd(how)).double().eval()
    patient = operate(model, "spatial_smoothing:prob=off", example=16)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    state = model.stem(x)
    for block in model.blocks:
        scale = 2.0 if how == "keyword" else 1.0
        state = state + scale * block.two(block.scale, F.relu(block.one(state)))
    blurred = F.avg_pool2d(F.pad(state, (0, 1, 0, 1), mode="replicate"), 2, 1)
    torch.testing.assert_close(patient(x), model.head(blurred.mean((2, 3))))


def test_what_cannot_be_told_apart_is_refused():
    model = Odd("pair").eval()
    with pytest.raises(SurgeryRefused, match="returns several tensors, and it is ambiguous which"):
        operate(model, "spatial_smoothing", example=16)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("flag", "'blocks.1' is not called with exactly one tensor"),
        ("keyword", "'blocks.1' is not called with exactly one tensor"),
        ("dict", "'blocks.1' does not return exactly one tensor"),
        ("pair", "'blocks.1' does not return exactly one tensor"),
    ],
)
def test_a_substitute_is_refused_where_it_would_not_fit(how, says):
    with pytest.raises(SurgeryRefused, match=says):
        operate(Odd(how).eval(), BuildUp((1,)), example=16)


def test_a_part_of_an_anatomy_restricts_the_build_up():
    import timm

    import retinoscope.models  # noqa: F401

    model = timm.create_model("micro_resnet")
    part = dissect(model, 32).where(stage=3)
    with pytest.raises(SurgeryRefused, match="stage 1 has room for 0 of the 1"):
        BuildUp((1, 0, 1, 0)).operate(model, part)
    patient = BuildUp((0, 0, 1, 0)).operate(model, part)
    assert dissect(patient, 32).sketch == "CC|C↓C|C↓CCA|C↓CCC"
    smooth = operate(model, "spatial_smoothing")
    with pytest.raises(
        SurgeryRefused, match="An earlier surgery has added parts there: apply build_up"
    ):
        operate(smooth, "build_up:msa_per_stage=(1,1,1,1)", example=32)
    with pytest.raises(SurgeryRefused, match="reduction 5 does not divide its"):
        operate(model, "build_up:msa_per_stage=(0,0,0,1),reduction=5")


def test_settings_are_fitted_and_refused_in_python_too():
    assert BuildUp([0, 0, 0, 1]) == BuildUp((0, 0, 0, 1))
    assert BuildUp(1).msa_per_stage == (1,)
    for wrong, says in (
        ({"window": 0}, "window is 1 or more; got 0"),
        ({"head_width": -1}, "head_width is 1 or more"),
        ({"heads": (0,)}, "heads is a tuple of numbers, each 1 or more"),
        ({"tables": "own"}, "tables is one of per_head, shared"),
    ):
        with pytest.raises(WrongSetting, match=says):
            BuildUp((1,), **wrong)
    with pytest.raises(WrongSetting, match="p is a finite number; got nan"):
        McDropout(float("nan"))


def test_operate_says_what_it_wants():
    model = Odd("plain").eval()
    with pytest.raises(WrongInput, match="Pass one with its settings"):
        operate(model, McDropout, example=16)
    copied = operate(model)
    assert copied is not model
    assert torch.equal(copied.head.weight, model.head.weight)
