"""The learning rate of every step: a linear warm-up, then a cosine, steps or a constant.

The schedulers are timm's, counted in optimiser steps. The rate depends only on the step number, so
no state has to be saved for resuming.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler
from torch.optim import Optimizer

from retinoscope.train.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """Numbers of optimiser steps."""

    per_epoch: int
    warmup: int
    """Steps of warm-up."""
    total: int

    @classmethod
    def of(cls, recipe: Recipe, images: int) -> Plan:
        """The plan for that many training images; an incomplete last batch is dropped."""
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
            # timm lowers the rate one step early.
            stairs = recipe.milestones if recipe.schedule == "steps" else ()
            self._scheduler = MultiStepLRScheduler(
                optimiser, [n * plan.per_epoch + 1 for n in stairs], recipe.factor, **warmup
            )

    def set(self, step: int) -> None:
        """Set the learning rate of a step, counted from 0."""
        self._scheduler.step_update(self.time(step))

    def time(self, step: int) -> int:
        """The scheduler's time of a step.

        The last step of warm-up has the full rate, unless the first one is to have none.
        """
        if step < self._plan.warmup:
            return step if self._recipe.idle_start else step + 1
        if self._recipe.advance == "step":
            return step
        return step - (step - self._plan.warmup) % self._plan.per_epoch
