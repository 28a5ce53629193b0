"""Recipes: all settings that determine the trained weights, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from retinoscope.core.errors import did_you_mean
from retinoscope.core.history import MARK
from retinoscope.core.preprocessing import image_size
from retinoscope.core.settings import (
    MAX_SEED,
    WrongSetting,
    check,
    fitted,
    make,
    refuse,
    setting,
)
from retinoscope.data.augment import Augmentation


@dataclass(frozen=True)
class Recipe:
    """All settings of a training; the same recipe on the same machine gives the same weights."""

    model: str = setting(
        "micro_resnet",
        "A timm name, torchvision:NAME, hf:NAME, path/file.py:function, or a file that was built "
        "or trained before.",
    )
    data: str = setting("cues", "Images with a train split; see retinoscope list data.")
    size: tuple[int, ...] = setting(
        (), "Image size: 224, or 224x160 for height x width. Default: the model's own."
    )
    mean: tuple[float, ...] = setting(
        (), "Normalisation: 0.5 or 0.49,0.48,0.45. Default: the model's own."
    )
    std: tuple[float, ...] = setting(
        (), "Standard deviation of the normalisation, written like mean.", above=0
    )
    epochs: int = setting(300, "Passes over the training images after warm-up.", at_least=1)
    batch: int = setting(96, "Images per optimiser step, over all processes.", at_least=1)
    optimiser: str = setting("adamw", "A name that timm knows: adamw, momentum (SGD), lamb, …")
    lr: float = setting(1.25e-4, "Learning rate after warm-up.", at_least=0)
    momentum: float = setting(0.9, "Momentum, for optimisers that have one.", at_least=0, below=1)
    weight_decay: float = setting(0.05, "Weight decay of the optimiser.", at_least=0)
    decayed: Literal["all", "matrices"] = setting(
        "all", "Apply weight decay to all parameters, or to all but norms and biases."
    )
    schedule: Literal["cosine", "steps", "constant"] = setting(
        "cosine", "Schedule of the learning rate."
    )
    lr_end: float = setting(0.0, "Learning rate at the end of the cosine.", at_least=0)
    milestones: tuple[int, ...] = setting(
        (), "Epochs after warm-up at which schedule=steps lowers the learning rate."
    )
    factor: float = setting(0.1, "Factor by which each step lowers the learning rate.", above=0)
    advance: Literal["epoch", "step"] = setting(
        "epoch", "Update the learning rate every epoch or every step."
    )
    warmup: int = setting(
        5, "Epochs in which the learning rate rises linearly, in addition to the others.",
        at_least=0,
    )  # fmt: skip
    idle_start: bool = setting(
        False, "Start warm-up at a learning rate of 0, as the papers' code does."
    )
    clip: float = setting(0.0, "Clip the gradient to this norm; 0 for no clipping.", at_least=0)
    augmentation: Augmentation = setting(
        Augmentation(), "Augmentation of the images; its settings are written like the others."
    )
    drop_path: float = setting(
        0.0,
        "Stochastic depth rate of the last block; it rises linearly with depth.",
        at_least=0,
        below=1,
    )
    ema: float = setting(
        0.0, "Decay of the exponential moving average of the weights; 0 for none.",
        at_least=0, below=1,
    )  # fmt: skip
    sam: float = setting(
        0.0, "Radius of sharpness-aware minimisation, such as 0.05; 0 for none.", at_least=0
    )
    ensemble: int = setting(
        1, "Passes whose predictions are averaged in the training loss.", at_least=1
    )
    distillation: Literal["none", "hard", "soft"] = setting("none", "Distil from a teacher.")
    teacher: str = setting("", "The teacher's name or file.")
    teaching: float = setting(
        0.5,
        "Weight of the distillation loss; the rest is the loss on the labels.",
        at_least=0,
        at_most=1,
    )
    temperature: float = setting(1.0, "Temperature of a soft teacher.", above=0)
    fraction: float = setting(
        1.0, "Share of the training images to use, balanced over classes.", above=0, at_most=1
    )
    holdout: float = setting(
        0.0, "Share of the training images held out for validation instead of the test split.",
        at_least=0, below=1,
    )  # fmt: skip
    scored: int = setting(
        0, "Images evaluated each epoch, balanced over classes; 0 for all.", at_least=0
    )
    pretrained: bool = setting(False, "Start from published weights.")
    weights: str = setting("", "A file of weights to start from.")
    accumulate: int = setting(
        1, "Gradient accumulation: parts into which each batch is split.", at_least=1
    )
    precision: Literal["float32", "bfloat16", "float64"] = setting(
        "float32", "bfloat16 is autocast: weights stay in float32."
    )
    channels_last: bool = setting(False, "Use the channels-last memory format.")
    compile: bool = setting(False, "Use torch.compile.")
    snapshots: int = setting(
        0, "Save a snapshot every this many epochs; 0 for start, warm-up and end only.", at_least=0
    )
    seed: int = setting(
        0,
        "Random seed for initial weights, image order, augmentation and dropout.",
        at_least=0,
        at_most=MAX_SEED,
    )

    def __post_init__(self) -> None:
        check(self, "recipe")
        if self.size:
            sides = self.size[0] if len(self.size) == 1 else self.size
            object.__setattr__(self, "size", image_size(sides))
        refuse(
            "recipe",
            (f"milestones rise from 1 on; got {self.milestones}",
             all(a < b for a, b in pairwise((0, *self.milestones)))),
            (f"distillation={self.distillation} does not work without a teacher; add "
             "teacher=NAME_OR_FILE", self.distillation == "none" or bool(self.teacher)),
            (f"teacher={self.teacher} does nothing without distillation=hard or soft",
             self.distillation != "none" or not self.teacher),
            ("schedule=steps does not work without milestones, such as milestones=(60,120,160)",
             self.schedule != "steps" or bool(self.milestones)),
        )  # fmt: skip

    def to_plain(self) -> dict[str, Any]:
        """The settings as plain values, for files and trackers."""
        plain = asdict(self) | {"augmentation": self.augmentation.to_plain()}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in plain.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Recipe:
        """The recipe that :meth:`to_plain` wrote; missing settings get their defaults."""
        images = make(Augmentation, plain.get("augmentation", {}), "augmentation")
        return make(cls, dict(plain) | {"augmentation": images}, "recipe")


def recorded_recipe(folder: Path) -> Recipe | None:
    """The recipe of a training folder; None if it cannot be read."""
    try:
        plain = json.loads((folder / MARK).read_text("utf-8"))["recipe"]
        return Recipe.from_plain(plain)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def changed(recipe: Recipe, settings: Mapping[str, Any], called: str = "recipe") -> Recipe:
    """The recipe with changed settings, including those of its augmentation; names are checked.

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
    """The plain values in which two recipes differ, one line each.

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
