import gc
import weakref

import pytest
import torch
from torch import nn

from retinoscope import dissect
from retinoscope.anatomy.dissect import known_or_taken_apart
from retinoscope.anatomy.record import recall


class Settings:
    def __init__(self):
        self.sharp = False


class Net(nn.Module):
    """Does what its attributes say."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 5, 3)
        self.scale, self.steps, self.settings = 2.0, [1, 2], Settings()
        self.offset = torch.ones(1)

    def forward(self, x):
        x = self.first(x) * self.scale * sum(self.steps) + self.offset.to(x)
        x = x.relu() if self.settings.sharp else x.tanh()
        return self.last(x).mean((2, 3))


@pytest.fixture
def net():
    net = Net().eval()
    dissect(net, 16)
    return net


def test_an_unchanged_model_is_known(net, exports):
    with torch.no_grad():
        net.first.weight.normal_()  # graphs read the weights when they run
    net.load_state_dict(Net().state_dict())
    found = known_or_taken_apart(net, 16, "another name")
    assert exports == []
    assert found.anatomy == dissect(net, 16, name="another name")
    assert exports == ["Net"]


CHANGES = {
    "module": lambda net: setattr(net, "last", nn.Conv2d(4, 5, 3)),
    "number": lambda net: setattr(net, "scale", 3.0),
    "list": lambda net: net.steps.append(3),
    "object": lambda net: setattr(net.settings, "sharp", True),
    "tensor": lambda net: net.offset.add_(1),
    "code": lambda net: setattr(net, "forward", lambda x: net.last(net.first(x)).mean((2, 3))),
    "precision": lambda net: net.double(),
    "parameter": lambda net: setattr(net.first, "weight", nn.Parameter(torch.ones(4, 3, 3, 3))),
    "shape": lambda net: setattr(net.first.weight, "data", torch.ones(4, 3, 1, 1)),
    "class": lambda net: setattr(net.first, "__class__", type("Other", (nn.Conv2d,), {})),
    "mode": lambda net: net.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_taken_apart_anew(change, net, exports):
    CHANGES[change](net)
    known_or_taken_apart(net, 16)
    assert exports == ["Net"]


def test_other_images_and_other_models_are_not_known(net):
    assert recall(net, (3, 16, 16), "net") is not None
    assert recall(net, (3, 20, 16), "net") is None
    assert recall(Net().eval(), (3, 16, 16), "net") is None


def test_what_is_remembered_keeps_no_model_alive():
    net = Net().eval()
    dissect(net, 16)
    weight, model = weakref.ref(net.first.weight), weakref.ref(net)
    del net
    gc.collect()
    assert model() is None
    assert weight() is None
