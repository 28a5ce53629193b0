"""One optimiser step: mix, forward, backward (twice with SAM), update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from retinoscope.core.settings import WrongSetting
from retinoscope.data.augmenting import generator
from retinoscope.models.memory import Parts
from retinoscope.train.feed import Portion
from retinoscope.train.objective import averaged, distilled, objective
from retinoscope.train.optimiser import make_optimiser, optimiser_state, restore_optimiser
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.sam import climbed, unrecorded
from retinoscope.train.schedule import Plan, Schedule
from retinoscope.train.student import Student

_DROPPED, _SCORED = 4, 5
"""Random streams of a network in training and evaluation; its images use other streams."""
_WAY_OUT = "Use a smaller model, smaller images or precision=bfloat16."


class Learner:
    """A network, its optimiser and its moving average; :meth:`learn` does one step."""

    def __init__(
        self,
        recipe: Recipe,
        student: Student,
        plan: Plan,
        classes: int,
        team: Processes,
        teacher: nn.Module | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.recipe, self.student, self.team = recipe, student, team
        self._classes, self._teacher, self._say = classes, teacher, say
        if recipe.precision == "float64" and team.device.type == "mps":
            raise WrongSetting(
                "This device has no float64. Use precision=float32, or --device cpu (in "
                "Python device='cpu')."
            )
        self._parts = Parts(recipe.accumulate)
        self._dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        self._layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        student.to(team.device, self._dtype).train()
        if recipe.channels_last:
            student.to(memory_format=torch.channels_last)
        self.optimiser = make_optimiser(student, recipe)
        self.schedule = Schedule(self.optimiser, recipe, plan)
        self.average = ModelEmaV3(student, decay=recipe.ema) if recipe.ema else None
        joined = team.joined(student)
        self._run: Callable[[Tensor], Any] = torch.compile(joined) if recipe.compile else joined
        self._joined = joined

    @property
    def best(self) -> Student:
        """The network that is evaluated and saved: the moving average if there is one."""
        return self.student if self.average is None else self.average.module

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimiser.param_groups[0]["lr"])

    def learn(self, step: int, portion: Portion) -> Tensor:
        """Do a step, counted from 0; returns its loss without waiting for the device."""
        images, targets = self._batch(step, portion)
        loss = self._gradient(step, images, targets)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.student.parameters(), self.recipe.clip)
        self.schedule.set(step)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.student)
        return loss

    def _batch(self, step: int, portion: Portion) -> tuple[Tensor, Tensor]:
        device = self.team.device
        images = portion.images.to(device, self._dtype, non_blocking=True)
        labels = portion.labels.to(device, non_blocking=True)
        images, targets = self.recipe.augmentation.mix(
            images, labels, self._classes, seed=self.recipe.seed, step=step, rank=self.team.rank
        )
        if targets.is_floating_point():
            targets = targets.to(self._dtype)
        return images.contiguous(memory_format=self._layout), targets

    def _gradient(self, step: int, images: Tensor, targets: Tensor) -> Tensor:
        """Compute the gradient of the step, in more parts if memory runs out; returns the loss."""

        def work(parts: int) -> Tensor:
            loss = self._backward(step, images, targets, parts)
            if self.recipe.sam:
                with climbed(self.student.parameters(), self.recipe.sam):
                    with unrecorded(self.student):
                        self._backward(step, images, targets, parts)
            return loss

        def split(parts: int) -> None:
            self.optimiser.zero_grad(set_to_none=True)
            self._say(
                f"Out of memory: each batch of {len(images)} now goes through in {parts} parts. "
                "The gradient stays that of the whole batch; batch norms see "
                f"{len(images) // parts} images at a time. Say accumulate={parts} to begin so."
            )

        try:
            return self._parts.run(work, len(images), split, _WAY_OUT)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise WrongSetting(
                f"A batch norm of {self.recipe.model} needs more than one image at a time; it "
                f"gets {len(images)} in {self._parts.count} parts. Use a larger batch, or a "
                "smaller accumulate."
            ) from error

    def _backward(self, step: int, images: Tensor, targets: Tensor, parts: int) -> Tensor:
        """Compute the gradient of the mean loss; the random numbers depend only on the step."""
        torch.manual_seed(self.seed(step))
        total = torch.zeros((), device=images.device, dtype=self._dtype)
        chunks = list(zip(images.chunk(parts), targets.chunk(parts), strict=True))
        for place, (some, goal) in enumerate(chunks):
            with self._synchronised(last=place == len(chunks) - 1):
                loss = self._loss(some, goal) * (len(some) / len(images))
                loss.backward()
            total += loss.detach()
        return total

    def _loss(self, images: Tensor, targets: Tensor) -> Tensor:
        half = self.recipe.precision == "bfloat16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
            passes = [self._run(images) for _ in range(self.recipe.ensemble)]
        pairs = [answer if isinstance(answer, tuple) else (answer, answer) for answer in passes]
        logits = averaged([pair[0].to(self._dtype) for pair in pairs])
        if self._teacher is None:
            return objective(logits, targets)
        with torch.no_grad():
            taught = self._teacher(images).to(self._dtype)
        kind = self.recipe.distillation
        assert kind != "none"  # there is a teacher
        learned = averaged([pair[1].to(self._dtype) for pair in pairs])
        return distilled(
            logits, learned, targets, taught, kind, self.recipe.teaching, self.recipe.temperature
        )

    def seed(self, step: int, scoring: bool = False) -> int:
        """Random seed of the network in a step, or in the evaluation after that many steps."""
        stream = _SCORED if scoring else _DROPPED
        random = generator(self.recipe.seed, (self.team.rank << 40) + step, stream)
        return int(random.integers(2**63))

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Exchange gradients between processes only once per step, with its last part."""
        wait = isinstance(self._joined, DistributedDataParallel) and not last
        with self._joined.no_sync() if wait else nullcontext():  # type: ignore[operator]
            yield

    def finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(torch.isfinite(p).all()) for p in self.student.parameters())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that changes from step to step: tensors by name, and plain values."""
        tensors, plain = optimiser_state(self.optimiser)
        named = {f"optimiser.{key}": value for key, value in tensors.items()}
        named |= {f"model.{key}": value for key, value in self.student.state_dict().items()}
        if self.average is not None:
            held = self.average.module.state_dict()
            named |= {f"average.{key}": value for key, value in held.items()}
        return named, {"optimiser": plain, "parts": self._parts.count}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""

        def under(name: str) -> dict[str, Tensor]:
            start = f"{name}."
            return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}

        self.student.load_state_dict(under("model"))
        if self.average is not None:
            self.average.module.load_state_dict(under("average"))
        restore_optimiser(self.optimiser, under("optimiser"), plain["optimiser"])
        self._parts.count = plain["parts"]
