"""The learning rate of every step: a linear warm-up, then a cosine, stairs or a constant.

Both are timm's schedulers, counted in optimiser steps. The rate depends on the number of the step
alone, so nothing about it has to be kept for resuming.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler
from torch.optim import Optimizer

from retinoscope.train.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """How many steps there are."""

    per_epoch: int
    warmup: int
    """Steps of the warm-up."""
    total: int

    @classmethod
    def of(cls, recipe: Recipe, images: int) -> Plan:
        """For so many training images; those that do not fill the last batch wait for the next."""
        each = images // recipe.batch
        return cls(each, recipe.warmup * each, (recipe.warmup + recipe.epochs) * each)


class Schedule:
    """Sets the learning rate of an optimiser before each step."""

    def __init__(self, optimiser: Optimizer, recipe: Recipe, plan: Plan) -> None:
        self._recipe, self._plan = recipe, plan
        warmup = {"warmup_t": plan.warmup, "warmup_prefix": True, "t_in_epochs": False}
        if recipe.schedule == "cosine":
            self._scheduler = CosineLRScheduler(
                optimiser, t_initial=plan.total - plan.warmup, lr_min=recipe.lr_end, **warmup
            )
        else:
            # timm goes down one count early.
            stairs = recipe.milestones if recipe.schedule == "steps" else ()
            self._scheduler = MultiStepLRScheduler(
                optimiser, [n * plan.per_epoch + 1 for n in stairs], recipe.factor, **warmup
            )

    def set(self, step: int) -> None:
        """Set the rate of the step with this number, from 0 on."""
        self._scheduler.step_update(self.time(step))

    def time(self, step: int) -> int:
        """Where a step stands on the scheduler's axis.

        The warm-up ends with the full rate at its last step, unless it is to begin with none.
        """
        if step < self._plan.warmup:
            return step if self._recipe.idle_start else step + 1
        if self._recipe.advance == "step":
            return step
        return step - (step - self._plan.warmup) % self._plan.per_epoch
