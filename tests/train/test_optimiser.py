import json

import pytest
import torch
from torch import nn

from retinoscope.core.settings import WrongSetting
from retinoscope.train.optimiser import make_optimiser, optimiser_state, restore_optimiser
from retinoscope.train.recipe import Recipe
from retinoscope.train.student import Student, load_student


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def steps(net: nn.Module, optimiser: torch.optim.Optimizer, count: int) -> None:
    for n in range(count):
        net(torch.full((2, 4), n + 1.0)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()


def test_decay_is_on_all_or_on_matrices_alone():
    everything = make_optimiser(network(), Recipe(weight_decay=0.1)).param_groups
    assert {group["weight_decay"] for group in everything} == {0.1}
    split = make_optimiser(network(), Recipe(weight_decay=0.1, decayed="matrices")).param_groups
    shapes = {group["weight_decay"]: {p.ndim for p in group["params"]} for group in split}
    assert shapes == {0.1: {2}, 0.0: {1}}


def test_what_a_network_names_is_spared_only_where_norms_are():
    loaded, _ = load_student(Recipe(model="micro_vit"))
    student = Student(loaded)
    sparing = make_optimiser(student, Recipe(weight_decay=0.1, decayed="matrices")).param_groups
    spared = {id(p) for group in sparing if not group["weight_decay"] for p in group["params"]}
    assert id(loaded.model.pos_embed) in spared
    assert id(loaded.model.blocks[0].mlp.fc1.weight) not in spared
    (group,) = make_optimiser(student, Recipe(weight_decay=0.1)).param_groups
    assert len(group["params"]) == len(list(student.parameters()))


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.05)),
        ("momentum", lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05, momentum=0.9)),
    ],
)
def test_the_optimiser_is_torchs(name, peer):
    ours, theirs = network(), network()
    steps(ours, make_optimiser(ours, Recipe(optimiser=name, lr=0.1)), 3)
    steps(theirs, peer(theirs.parameters()), 3)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        # One fused kernel against a loop: the last bits differ.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    start = network()
    assert not torch.allclose(next(ours.parameters()), next(start.parameters()))


@pytest.mark.parametrize("name", ["adamw", "momentum", "lamb", "adafactor", "lion", "nadamw"])
def test_what_was_kept_goes_on_bit_for_bit(name):
    recipe = Recipe(optimiser=name, lr=0.1)
    whole, first = network(), network()
    steps(whole, make_optimiser(whole, recipe), 2)
    optimiser = make_optimiser(first, recipe)
    steps(first, optimiser, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), first.parameters(), strict=True)
    )
    tensors, plain = optimiser_state(optimiser)
    second = network()
    second.load_state_dict(first.state_dict())
    again = make_optimiser(second, recipe)
    kept = json.loads(json.dumps(plain))
    restore_optimiser(again, {k: v.clone() for k, v in tensors.items()}, kept)
    steps(first, optimiser, 3)
    steps(second, again, 3)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_unknown_one_is_refused():
    with pytest.raises(WrongSetting, match=r"no optimiser 'adamx'\. Did you mean"):
        make_optimiser(network(), Recipe(optimiser="adamx"))
