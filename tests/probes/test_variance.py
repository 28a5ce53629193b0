import numpy as np
import pytest
import torch
from torch import nn

import retinoscope
from retinoscope.probes.variance import Variance
from retinoscope.run.subject import load_subject


class Scaling(nn.Module):
    """A block that doubles its input, then attention that averages everything away."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.again = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.again(x).relu() - (-self.again(x)).relu()
        tokens = x.flatten(2).transpose(1, 2)
        mixing = torch.softmax(0 * tokens @ tokens.transpose(1, 2), -1)
        tokens = tokens + (mixing @ tokens - tokens)
        return self.head(tokens.mean(1))


def test_known_steps_of_doubling_and_of_uniform_attention():
    model = Scaling().double().eval()
    with torch.no_grad():
        model.again.weight.copy_(torch.eye(4).reshape(4, 4, 1, 1))
        model.again.bias.zero_()
    subject = load_subject(model, "cues", size=(12, 12), images=30)
    found = retinoscope.measure(Variance(), subject)
    assert found.variance[1] == pytest.approx(4 * found.variance[0], rel=1e-9)
    assert found.variance[-1] == pytest.approx(0, abs=1e-20)
    assert found.step[-1] == pytest.approx(-found.variance[-2], rel=1e-9)
    assert found.kinds[-1] == "attention"
    assert found.skipped == (("head", "its state has no grid"),)


def test_equals_the_naive_variance_of_the_stem():
    model = Scaling().eval()
    subject = load_subject(model, "cues", size=(12, 12), images=7, batch=3)
    found = retinoscope.measure(Variance(), subject)
    (batch,) = subject.splits["test"].batches(range(7), 7)
    with torch.no_grad():
        maps = subject.replay.states(batch.images)[found.units[0]].maps.double()
    assert found.variance[0] == pytest.approx(maps.flatten(2).var(-1).mean().item(), rel=1e-6)


def test_offsets_change_nothing():
    model = Scaling().double().eval()
    settings = dict(size=(12, 12), images=5)
    base = retinoscope.measure(Variance(), load_subject(model, "cues", **settings))
    with torch.no_grad():
        model.stem.bias += 3
        model.again.weight.zero_()
    moved = retinoscope.measure(Variance(), load_subject(model, "cues", **settings))
    np.testing.assert_allclose(moved.variance[0], base.variance[0], rtol=1e-9)
