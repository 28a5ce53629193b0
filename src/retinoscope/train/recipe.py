"""How to train: everything that decides which weights come out, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from retinoscope.core.errors import did_you_mean
from retinoscope.core.history import MARK
from retinoscope.core.settings import WrongSetting, check, fitted, make, setting
from retinoscope.data.augment import Augmentation


@dataclass(frozen=True)
class Recipe:
    """A training in full; the same recipe on the same machine gives the same weights."""

    model: str = setting("micro_resnet", "A name that load_model knows.")
    data: str = setting("cues", "A name that load_data knows, with a split called train.")
    epochs: int = setting(300, "Passes over the training images, behind the warm-up.")
    batch: int = setting(96, "Images per optimiser step, over all processes.")
    optimiser: str = setting("adamw", "A name that timm knows: adamw, momentum (SGD), lamb, …")
    lr: float = setting(1.25e-4, "Learning rate after the warm-up.")
    momentum: float = setting(0.9, "Of optimisers that have one.")
    weight_decay: float = setting(0.05, "As the optimiser means it.")
    decayed: Literal["all", "matrices"] = setting(
        "all", "What decays: all parameters, or none of the norms and biases."
    )
    schedule: Literal["cosine", "steps", "constant"] = setting("cosine", "Of the learning rate.")
    lr_end: float = setting(0.0, "Where the cosine ends.")
    milestones: tuple[int, ...] = setting((), "Epochs behind the warm-up at which steps go down.")
    factor: float = setting(0.1, "By which steps go down.")
    advance: Literal["epoch", "step"] = setting("epoch", "How often the schedule moves.")
    warmup: int = setting(5, "Epochs in which the rate rises linearly, in addition to the others.")
    idle_start: bool = setting(
        False, "Let the first step have a rate of 0, as the papers' code does."
    )
    clip: float = setting(0.0, "Largest norm of the gradient; 0 for any.")
    augmentation: Augmentation = setting(
        Augmentation(), "What is done to the images; its settings can be named like the others."
    )
    drop_path: float = setting(0.0, "Stochastic depth of the last branch, rising linearly to it.")
    ema: float = setting(0.0, "Decay of an average of the weights, kept instead; 0 for none.")
    sam: float = setting(0.0, "Radius of sharpness-aware minimisation, such as 0.05; 0 for none.")
    ensemble: int = setting(1, "Passes whose predictions are averaged in the training loss.")
    distillation: Literal["none", "hard", "soft"] = setting("none", "Learn of a teacher.")
    teacher: str = setting("", "Its name or file.")
    teaching: float = setting(0.5, "Share of the loss that is the teacher's.")
    temperature: float = setting(1.0, "Of a soft teacher.")
    fraction: float = setting(1.0, "Share of the training images, the same of each class.")
    holdout: float = setting(
        0.0, "Share of them kept back to be scored on instead of the test split."
    )
    scored: int = setting(0, "Images that are scored each epoch, the same of each class; 0: all.")
    pretrained: bool = setting(False, "Begin with published weights.")
    weights: str = setting("", "A file to begin with.")
    accumulate: int = setting(1, "Parts in which a batch goes through the network.")
    precision: Literal["float32", "bfloat16", "float64"] = setting(
        "float32", "bfloat16 is autocast: weights stay in float32."
    )
    channels_last: bool = setting(False, "Lay images out with the channels last.")
    compile: bool = setting(False, "Use torch.compile.")
    snapshots: int = setting(0, "Keep the weights every so many epochs; 0: only the usual three.")
    seed: int = setting(0, "Of first weights, order, augmentation and dropout.")

    def __post_init__(self) -> None:
        check(self, "recipe")
        wrong = [text for text, holds in self._bounds() if not holds]
        if wrong:
            raise WrongSetting(f"A recipe cannot have {'; '.join(wrong)}.")

    def _bounds(self) -> list[tuple[str, bool]]:
        """What must hold between and for the numbers, each with how to say that it does not."""
        several = ("epochs", "batch", "accumulate", "ensemble")
        any_number = (
            "scored",
            "lr",
            "lr_end",
            "weight_decay",
            "warmup",
            "clip",
            "sam",
            "snapshots",
        )
        shares = ("drop_path", "ema", "holdout", "momentum")
        return [
            *((f"{name} {getattr(self, name)}, which is 1 or more", getattr(self, name) >= 1)
              for name in several),
            *((f"{name} {getattr(self, name)}, which is 0 or more", getattr(self, name) >= 0)
              for name in any_number),
            *((f"{name} {getattr(self, name)}, which is from 0 to below 1",
               0 <= getattr(self, name) < 1) for name in shares),
            (f"fraction {self.fraction}, which is above 0 and up to 1", 0 < self.fraction <= 1),
            (f"teaching {self.teaching}, which is from 0 to 1", 0 <= self.teaching <= 1),
            (f"temperature {self.temperature}, which is above 0", self.temperature > 0),
            (f"seed {self.seed}, which is from 0 to 2³² - 1", 0 <= self.seed < 2**32),
            (f"a distillation that is {self.distillation} without a teacher (teacher=NAME_OR_FILE)",
             self.distillation == "none" or bool(self.teacher)),
            (f"the teacher {self.teacher} without distillation=hard or soft",
             self.distillation != "none" or not self.teacher),
            (f"milestones {self.milestones}, which rise from 1 on",
             all(a < b for a, b in pairwise((0, *self.milestones)))),
            (f"factor {self.factor}, which is above 0", self.factor > 0),
            ("a schedule of steps without milestones, such as milestones=(60,120,160)",
             self.schedule != "steps" or bool(self.milestones)),
        ]  # fmt: skip

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for files and trackers."""
        plain = asdict(self) | {"augmentation": self.augmentation.to_plain()}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in plain.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Recipe:
        """What :meth:`to_plain` wrote; what it did not know yet is as by default."""
        images = make(Augmentation, plain.get("augmentation", {}), "augmentation")
        return make(cls, dict(plain) | {"augmentation": images}, "recipe")


def recorded_recipe(folder: Path) -> Recipe | None:
    """The recipe of a training by its folder; None where it cannot be read."""
    try:
        plain = json.loads((folder / MARK).read_text("utf-8"))["recipe"]
        return Recipe.from_plain(plain)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def changed(recipe: Recipe, settings: Mapping[str, Any], called: str = "recipe") -> Recipe:
    """The recipe with other settings, those of its augmentation included; every name is checked.

    Example:
        >>> other = changed(Recipe(), {"lr": 0.1, "mixup": 0.8})
        >>> other.lr, other.augmentation.mixup
        (0.1, 0.8)
    """
    own = {f.name for f in fields(Recipe)} - {"augmentation"}
    images = {f.name for f in fields(Augmentation)}
    mine: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in own | images:
            known = sorted(own | images)
            raise WrongSetting(
                f"{called} has no field {name!r}. {did_you_mean(name, known)}"
                f"It has: {', '.join(known)}."
            )
        kind, kept = (Recipe, mine) if name in own else (Augmentation, theirs)
        kept[name] = fitted(kind, name, value, called)
    augmentation = replace(recipe.augmentation, **theirs)
    return replace(recipe, **mine, augmentation=augmentation)


def differences(before: Mapping[str, Any], after: Mapping[str, Any], within: str = "") -> list[str]:
    """In which plain values two recipes differ, a line each.

    Example:
        >>> differences({"lr": 0.1, "batch": 96}, {"lr": 0.2, "batch": 96})
        ['lr: 0.1 → 0.2']
    """
    lines = []
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{within}{key}.")
        elif a != b:
            lines.append(f"{within}{key}: {a} → {b}")
    return lines
