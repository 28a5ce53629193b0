"""A training in progress: steps, epochs, log rows, snapshots and checkpoints."""

from __future__ import annotations

import math
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from retinoscope import __version__
from retinoscope.anatomy.dissect import dissect
from retinoscope.core.errors import RetinoscopeError, first_line
from retinoscope.core.folders import writing
from retinoscope.core.settings import WrongSetting
from retinoscope.core.specification import short_name
from retinoscope.core.wording import assumed_words
from retinoscope.data.load import check_data
from retinoscope.models.built_file import Construction, write_built
from retinoscope.models.load import LoadedModel
from retinoscope.train.checkpoints import Checkpoint, last_checkpoint, write_checkpoint
from retinoscope.train.feed import Feed, Portion
from retinoscope.train.folder import TrainingFolder
from retinoscope.train.images import find_images
from retinoscope.train.learner import Learner
from retinoscope.train.listener import Listener, Started
from retinoscope.train.meter import Clock, Meter
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.schedule import Plan
from retinoscope.train.score import score
from retinoscope.train.student import Student, draws, load_student, shape_of
from retinoscope.train.teacher import load_teacher

_AGREED = 20
"""Steps between two checks with the first process whether a checkpoint is due."""


class Diverged(RetinoscopeError):
    """The loss or the weights are not finite any more."""


@dataclass(frozen=True)
class Trained:
    """The outcome of a training, finished or not."""

    folder: Path
    rows: tuple[dict[str, Any], ...]
    """The log, one row per epoch."""
    end: Path | None
    """The final weights, usable as a model's name; None if the training is not finished."""

    @property
    def finished(self) -> bool:
        """Whether the training is complete."""
        return self.end is not None


class Training:
    """A training in progress."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        name: str,
        root: str | None,
        team: Processes,
        listeners: tuple[Listener, ...],
    ) -> None:
        self.recipe, self.team, self.listeners = recipe, team, listeners
        self.name = name or "recipe"
        self.rows: list[dict[str, Any]] = []
        # The folder comes first: a wrong one is refused before minutes are spent on reading.
        self.folder = TrainingFolder(out, recipe.to_plain()) if team.first else None
        try:
            self._prepare(root)
        except BaseException:
            self.close()
            raise

    def _prepare(self, root: str | None) -> None:
        recipe = self.recipe
        check_data(recipe.data, root)
        self.loaded, self.construction = load_student(recipe)
        if self.loaded.assumed:
            self.say(assumed_words(short_name(recipe.model), self.loaded.assumed))
        student = Student(self.loaded, recipe.distillation != "none")
        preprocessing = self.loaded.preprocessing
        shape = shape_of(student)
        self.outputs = shape[1]
        self.images, self.test = find_images(recipe, preprocessing, shape, root)
        self.plan = Plan.of(recipe, len(self.images))
        self.team.check_share(recipe.batch)
        teacher, taught = load_teacher(recipe, student.image, self.outputs, self.team)
        self.learner = Learner(
            recipe, student, self.plan, self.outputs, self.team, teacher, self.say
        )
        _check_random(recipe, self.loaded)
        # Last: a recipe that fails must not claim the folder.
        self._describe(taught)

    def _describe(self, teacher: str | None) -> None:
        if self.folder is None:
            return
        changes = self.folder.describe(
            {
                "name": self.name,
                "recipe": self.recipe.to_plain(),
                "data": {
                    "called": self.recipe.data,
                    "train": self.images.protocol,
                    "test": None if self.test is None else self.test.protocol,
                },
                "steps": {
                    "total": self.plan.total,
                    "per_epoch": self.plan.per_epoch,
                    "warmup": self.plan.warmup,
                },
                "model": {
                    "name": self.construction.model,
                    "weights": self.loaded.weights,
                    "parameters": sum(p.numel() for p in self.loaded.model.parameters()),
                },
                "teacher": teacher and {"name": self.recipe.teacher, "weights": teacher},
                "versions": _versions(self.team),
            }
        )
        if changes:
            self.say(
                f"This is not what the training was begun with ({'; '.join(changes)}), so its bits "
                "need not be those of one that was never stopped."
            )

    def _write_anatomy(self, folder: TrainingFolder) -> None:
        """Write the model's anatomy, which training neither changes nor needs."""
        if (folder.path / "anatomy.json").is_file():
            return
        try:
            found = dissect(
                self.loaded.model, self.loaded.preprocessing.size, name=self.recipe.model
            )
        except RetinoscopeError as error:  # training does not need it
            self.say(f"No anatomy of {self.recipe.model}: {first_line(error)}")
            return
        folder.write("anatomy.json", replace(found, weights=self.loaded.weights).to_json())

    def run(self, workers: int, until: int | None, every: float) -> Trained:
        """Do all remaining steps, or those up to ``until``."""
        if self.team.told(self.folder is not None and self.folder.finished(self.plan.total)):
            return self._finish()
        checkpoint = self._resume()
        done = checkpoint.step if checkpoint else 0
        self.rows = list(checkpoint.plain["rows"]) if checkpoint else []
        self._begin(done)
        self._load_pixels()
        if checkpoint is None:
            self._first_row()
        stop = self.plan.total if until is None else max(done, min(until, self.plan.total))
        meter = Meter(self.team, checkpoint)
        self._clock = Clock(every)
        feed = Feed(
            self.images, self.recipe.augmentation, self.plan.per_epoch, self.recipe.batch,
            self.recipe.seed, self.team.rank, self.team.world,
        )  # fmt: skip
        pinned = self.team.device.type == "cuda"
        for step, portion in enumerate(feed.portions(done, stop, workers, pinned), start=done):
            self._step(step, portion, meter)
        if stop < self.plan.total:
            if stop > done:
                meter.look(self._diverged)
                self._write_checkpoint(stop, meter)
            return self._trained(None)
        return self._finish()

    def _step(self, step: int, portion: Portion, meter: Meter) -> None:
        for text in portion.aside:
            self.say(f"Set aside: {text}")
        meter.add(step, self.learner.learn(step, portion), self._diverged)
        done = step + 1
        for listener in self.listeners:
            listener.step(done)
        ended = done % self.plan.per_epoch == 0
        if ended:
            meter.look(self._diverged)
            self._end_epoch(done, meter)
        if done < self.plan.total and self._due(done, ended):
            meter.look(self._diverged)
            self._write_checkpoint(done, meter)

    def _due(self, done: int, ended: bool) -> bool:
        if self.team.world == 1:
            return self._clock.due()
        # All processes must do the same, and asking costs a round of communication.
        return (ended or done % _AGREED == 0) and self.team.told(self._clock.due())

    def _end_epoch(self, done: int, meter: Meter) -> None:
        epoch = done // self.plan.per_epoch
        self._row(epoch, done, self.learner.rate, meter.mean())
        meter.forget()
        every = self.recipe.snapshots
        if done == self.plan.warmup:
            self._snapshot("warmup")
        behind = epoch - self.recipe.warmup
        if every and behind > 0 and behind % every == 0 and done < self.plan.total:
            self._snapshot(f"epoch-{behind:04d}")
        if done == self.plan.total:
            self._snapshot("end")
        if self.folder is not None:
            self.folder.note_time({"epoch": epoch, **self._clock.lap()})

    def _first_row(self) -> None:
        self._snapshot("init")
        if self.plan.warmup == 0:
            self._snapshot("warmup")
        self._row(0, 0, 0.0, None)

    def _row(self, epoch: int, done: int, rate: float, lost: float | None) -> None:
        torch.manual_seed(self.learner.seed(done, scoring=True))
        self.team.share_buffers(self.learner.best)
        scores: dict[str, Any] = dict.fromkeys(("accuracy", "nll", "ece", "images"))
        if self.test is not None:
            scores |= score(self.learner.best, self.test, self.team, self.say)
        row = {"epoch": epoch, "step": done, "lr": rate, "nll_train": lost} | scores
        row = {k: None if isinstance(v, float) and not math.isfinite(v) else v
               for k, v in row.items()}  # fmt: skip
        self.rows.append(row)
        if self.folder is not None:
            self.folder.write_log(self.rows)
        for listener in self.listeners:
            listener.epoch(row)

    def _snapshot(self, name: str) -> None:
        if self.folder is None:
            return
        way: Construction = replace(
            self.construction,
            trained=True if self.rows else self.construction.trained,
        )
        with writing(self.folder.path):
            write_built(self.folder.snapshot(name), self.learner.best.backbone, way)

    def _write_checkpoint(self, done: int, meter: Meter) -> None:
        if not self.learner.finite():
            raise self._diverged(done - 1, math.nan)
        sums = self.team.gathered(meter.sums())
        if self.folder is None:
            return
        tensors, plain = self.learner.state()
        plain |= {"rows": self.rows, "sums": sums}
        with writing(self.folder.path), self._clock.writing():
            write_checkpoint(self.folder.checkpoints, Checkpoint(done, tensors, plain))

    def _resume(self) -> Checkpoint | None:
        """Restore the last checkpoint, read by the first process: others may not see its disk."""
        found = last_checkpoint(self.folder.checkpoints, self.say) if self.folder else None
        found = self.team.told(found)
        if found is not None:
            self.learner.restore(found.tensors, found.plain)
        return found

    def _begin(self, done: int) -> None:
        folder = self.folder.path if self.folder else Path()
        started = Started(
            self.name, self.recipe.model, self.recipe.data, folder, self.plan.total,
            self.plan.per_epoch, done, self.recipe.warmup + self.recipe.epochs, len(self.images),
            self.recipe.to_plain(),
        )  # fmt: skip
        for listener in self.listeners:
            listener.begin(started)
            for row in self.rows:
                listener.epoch(row)

    def _load_pixels(self) -> None:
        if self.recipe.augmentation.resized is None:
            self.images = self.images.in_memory(self.say)
        if self.test is not None:
            self.test = self.test.in_memory(self.say)

    def _finish(self) -> Trained:
        if self.folder is None:
            return self._trained(None)
        self.rows = self.folder.rows()
        shutil.rmtree(self.folder.checkpoints, ignore_errors=True)
        self._write_anatomy(self.folder)
        return self._trained(self.folder.snapshot("end"))

    def _trained(self, end: Path | None) -> Trained:
        return Trained(self.folder.path if self.folder else Path(), tuple(self.rows), end)

    def _diverged(self, step: int, loss: float) -> Diverged:
        last = "The first process has the last checkpoint."
        if self.folder:
            kept = sorted(self.folder.checkpoints.glob("step-*"))
            last = "No checkpoint was written."
            if kept:
                last = f"The last good checkpoint is {str(kept[-1])!r}."
        return Diverged(
            f"The loss or the weights are {loss} at step {step + 1} of {self.plan.total} (learning "
            f"rate {self.learner.rate:.3g}). {last} Try a lower lr, a longer warmup, clip=5, or "
            "precision=float32, in a new folder."
        )

    def say(self, text: str) -> None:
        """Pass a message to all listeners."""
        for listener in self.listeners:
            listener.say(text)

    def close(self) -> None:
        """Notify the listeners that the training has ended, and release the folder."""
        for listener in self.listeners:
            listener.end()
        if self.folder is not None:
            self.folder.close()


def _check_random(recipe: Recipe, loaded: LoadedModel) -> None:
    """Refuse to average several passes of a network that is not random."""
    if recipe.ensemble > 1 and not draws(loaded.model):
        raise WrongSetting(
            f"ensemble {recipe.ensemble} averages several passes of {recipe.model}, but they are "
            "all the same: nothing in it is random. Give it dropout (surgery mc_dropout, a name "
            "that ends in _mcdo) or stochastic depth (drop_path=0.1)."
        )


def _versions(team: Processes) -> dict[str, Any]:
    import timm

    return {
        "retinoscope": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "device": team.device.type,
        "processes": team.world,
        "threads": torch.get_num_threads(),
    }
