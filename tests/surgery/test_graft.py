import copy
import pickle
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from retinoscope.surgery.graft import Around, graft


class Plus(nn.Module):
    """Adds a learned number; says in which order it was called."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(number))

    def forward(self, x):
        return x + self.number


class Counting(Around):
    """Counts how often the module ran in its context."""

    count = 0

    @contextmanager
    def context(self, *args, **kwargs):
        Counting.count += 1
        yield


def grafted() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    graft(model[0], Plus(1.0), "before")
    graft(model[0], Plus(2.0), "after")
    return model


def test_parts_run_before_and_behind_the_module_that_stays():
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model = copy.deepcopy(plain)
    graft(model[0], Plus(1.0), "before")
    graft(model[0], Plus(2.0), "after")
    x = torch.randn(4, 3)
    assert torch.equal(model(x), (plain[0](x + 1) + 2).relu())
    assert isinstance(model[0], nn.Linear)
    assert set(plain.state_dict()) < set(model.state_dict())
    assert "0.graft_after.0.number" in model.state_dict()


def test_what_comes_later_lies_further_out():
    class Double(nn.Module):
        def forward(self, x):
            return 2 * x

    module = nn.Identity()
    graft(module, Plus(1.0), "before")
    graft(module, Double(), "before")
    graft(module, Plus(1.0), "after")
    graft(module, Double(), "after")
    assert module(torch.tensor(5.0)) == ((5 * 2 + 1) + 1) * 2


def test_copies_and_pickles_are_independent():
    model = grafted()
    x = torch.randn(2, 3)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin[0].graft_after[0].number.add_(1)
        assert not torch.equal(twin(x), model(x))
        assert type(twin[0]) is type(model[0])


def test_keyword_arguments_tuples_and_contexts():
    class Own(nn.Module):
        def forward(self, states, scale=1.0):
            return states * scale, "more"

    module = Own().eval()
    graft(module, Plus(1.0), "before", takes="states")
    graft(module, Plus(2.0), "after", gives=0)
    graft(module, Counting(), "around")
    Counting.count = 0
    found, more = module(states=torch.tensor(3.0), scale=2.0)
    assert (found, more) == ((3 + 1) * 2 + 2, "more")
    assert Counting.count == 1
    assert not module.graft_after.training


def test_gradients_modes_and_compilation():
    model = grafted().train()
    assert model[0].graft_before[0].training
    model(torch.randn(2, 3)).sum().backward()
    assert model[0].graft_before[0].number.grad is not None
    model.eval()
    assert not model[0].graft_before[0].training
    exported = torch.export.export(model, (torch.randn(2, 3),)).module()
    x = torch.randn(2, 3)
    assert torch.equal(exported(x), model(x))


def test_answers_that_are_named_or_left_alone():
    class Answer(NamedTuple):
        states: torch.Tensor
        more: str

    class Own(nn.Module):
        def forward(self, x):
            return Answer(x, "more")

    class Named(nn.Module):
        def forward(self, x):
            return {"states": x}

    module = Own()
    graft(module, Plus(2.0), "after", gives=0)
    assert module(torch.tensor(1.0)) == Answer(torch.tensor(3.0), "more")
    named = Named()
    graft(named, Plus(2.0), "before")
    assert named(torch.tensor(1.0)) == {"states": torch.tensor(3.0)}
    graft(named, Plus(1.0), "after", gives="states")
    assert named(torch.tensor(1.0)) == {"states": torch.tensor(4.0)}
