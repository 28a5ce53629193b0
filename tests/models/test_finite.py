import math

import pytest
import torch
from torch import nn

from retinoscope import load_model, load_subject
from retinoscope.core.errors import NotFinite
from retinoscope.models.finite import check_finite


def net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    ).eval()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["0.weight", "1.running_var", "4.bias"])
def test_what_is_not_finite_is_refused_by_name(name, value):
    model = net()
    model.state_dict()[name].view(-1)[1] = value
    called = "NaN" if math.isnan(value) else "infinite"
    total = model.state_dict()[name].numel()
    with pytest.raises(NotFinite, match=rf"first in {name}: 1 {called} of {total} numbers\."):
        check_finite(model, "as given")
    with pytest.raises(NotFinite, match=r"as given.*--weights FILE \(in Python weights=…\)"):
        load_subject(model, "cues", size=8, images=2)


def test_the_first_comes_first_and_the_others_are_listed():
    model = net()
    model[4].bias.data[0], model[0].weight.data[0] = math.nan, math.nan
    with pytest.raises(
        NotFinite, match=r"first in 0.weight: 27 NaN of 108 numbers, then in 4.bias"
    ):
        check_finite(model, "as given")


def test_masks_may_hold_infinity_and_nothing_else_may():
    model = net()
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    check_finite(model, "as given")
    model.mask[0] = math.nan
    with pytest.raises(NotFinite, match="first in mask"):
        check_finite(model, "as given")


def test_a_file_of_weights_is_checked_when_it_is_loaded(tmp_path):
    state = load_model("test_resnet", pretrained=False).model.state_dict()
    first = next(iter(state))
    state[first].view(-1)[0] = math.nan
    torch.save(state, tmp_path / "diverged.pth")
    with pytest.raises(NotFinite, match=rf"diverged.pth, sha256 .* first in {first}: 1 NaN"):
        load_model("test_resnet", weights=tmp_path / "diverged.pth")
