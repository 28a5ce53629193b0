from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from retinoscope.train.recipe import Recipe
from retinoscope.train.schedule import Plan, Schedule


def rates(recipe: Recipe, images: int) -> tuple[list[float], Plan]:
    """The learning rate of every step of a training."""
    plan = Plan.of(recipe, images)
    optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=recipe.lr)
    schedule = Schedule(optimiser, recipe, plan)
    found = []
    for step in range(plan.total):
        schedule.set(step)
        found.append(optimiser.param_groups[0]["lr"])
    return found, plan


def test_steps_are_counted_without_the_batch_that_is_not_full():
    assert Plan.of(Recipe(epochs=3, warmup=2, batch=10), 49) == Plan(4, 8, 20)


@pytest.mark.parametrize("images", [40, 100])
def test_a_cosine_by_epochs_is_torchs(images: int):
    recipe = Recipe(epochs=7, warmup=2, batch=10, lr=0.3)
    found, plan = rates(recipe, images)
    optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.3)
    peer = CosineAnnealingLR(optimiser, T_max=7, eta_min=0)
    expected = []
    for _ in range(7):
        expected += [optimiser.param_groups[0]["lr"]] * plan.per_epoch
        optimiser.step()
        peer.step()
    assert found[plan.warmup :] == pytest.approx(expected, abs=1e-15)


def test_stairs_are_torchs():
    recipe = Recipe(
        epochs=9, warmup=1, batch=10, lr=0.1, schedule="steps", milestones=(2, 5), factor=0.2
    )
    found, plan = rates(recipe, 30)
    optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    peer = MultiStepLR(optimiser, [2, 5], 0.2)
    expected = []
    for _ in range(9):
        expected += [optimiser.param_groups[0]["lr"]] * plan.per_epoch
        optimiser.step()
        peer.step()
    assert found[plan.warmup :] == pytest.approx(expected, abs=1e-15)


def test_the_warm_up_rises_by_the_same_amount_to_the_full_rate():
    found, plan = rates(Recipe(epochs=2, warmup=2, batch=10, lr=0.5), 50)
    assert found[: plan.warmup] == pytest.approx([0.5 * n / 10 for n in range(1, 11)])
    idle, _ = rates(Recipe(epochs=2, warmup=2, batch=10, lr=0.5, idle_start=True), 50)
    assert idle[: plan.warmup] == pytest.approx([0.5 * n / 10 for n in range(10)])
    assert idle[plan.warmup :] == found[plan.warmup :]


def test_a_cosine_by_steps_never_rises_and_ends_where_it_should():
    recipe = Recipe(epochs=4, warmup=0, batch=10, lr=1.0, lr_end=0.1, advance="step")
    found, plan = rates(recipe, 50)
    assert all(a > b for a, b in pairwise(found))
    assert found[plan.total // 2] == pytest.approx(0.55)
    assert 0.1 < found[-1] < 0.11


def test_a_constant_stays():
    found, plan = rates(Recipe(epochs=4, warmup=1, batch=10, lr=0.2, schedule="constant"), 50)
    assert set(found[plan.warmup :]) == {0.2}


def test_the_rate_of_a_step_does_not_depend_on_those_before():
    recipe = Recipe(epochs=4, warmup=1, batch=10, lr=0.2)
    found, plan = rates(recipe, 50)
    for step in (3, 17, 8):
        optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=recipe.lr)
        Schedule(optimiser, recipe, plan).set(step)
        assert optimiser.param_groups[0]["lr"] == found[step]
