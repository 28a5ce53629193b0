"""What determines a subject, as plain values that another process can be sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from retinoscope.core.errors import UnknownModel, UnreadableFile, WrongInput
from retinoscope.core.preprocessing import CropMode, Interpolation, image_size
from retinoscope.core.settings import MAX_SEED, REQUIRED, WrongSetting, check, setting
from retinoscope.core.specification import Specification, split_label
from retinoscope.data.augment import Augmentation
from retinoscope.data.load import check_data

Precision = Literal["float32", "float64", "bfloat16", "float16"]
_FILES = (".safetensors", ".pth", ".pt")
_DATA, _MODEL, _WORK = "Images", "Model", "Work"


@dataclass(frozen=True)
class SubjectSpecification:
    """All that determines a subject, as plain values: another process rebuilds it from this.

    Commands make their flags from these fields; ``help`` and ``group`` are what they show.
    """

    model: str = setting(REQUIRED, "A name that load_model knows.", group=_MODEL)
    data: str = setting(
        "cues",
        "cues (embedded, the default), cifar10, cifar100, imagenet, a folder of photos or of class "
        "folders, a .parquet file, hf:NAME. See: retinoscope list data",
        group=_DATA,
    )
    root: str | None = setting(
        None, "Where named data lie. Default: the environment's RETINOSCOPE_DATA.", group=_DATA
    )
    images: int | None = setting(
        512,
        "Images per split, as even over classes as possible; all for every image.",
        at_least=1,
        group=_DATA,
    )
    """None for all."""
    size: tuple[int, int] | None = setting(
        None,
        "Image size: 224, or 224x160 for height x width. Default: the model's own.",
        group=_DATA,
    )
    """A single number is the side of a square."""
    pretrained: bool = setting(
        True,
        "Random weights from --seed instead of published ones.",
        flag="--untrained",
        group=_MODEL,
    )
    weights: str | None = setting(
        None, "A .safetensors or .pth file of weights, for a single model.", group=_MODEL
    )
    allow_pickle: bool = setting(
        False, "Read a .pth file that runs code. Only if you trust it.", group=_MODEL
    )
    output: str | None = setting(
        None, "Entry of a dict or tuple output that holds the logits.", group=_MODEL
    )
    seed: int = setting(
        0,
        "Random seed for weights and the choice of images.",
        at_least=0,
        at_most=MAX_SEED,
        group=_WORK,
    )
    precision: Precision | None = setting(
        None, "float32 (default), float64, bfloat16 or float16.", group=_MODEL
    )
    """Where None: float32 for a named model, what it has for one of your own."""
    device: str | None = setting(
        None, "cuda, cuda:1, mps or cpu. Default: the best there is.", group=_MODEL
    )
    """Where None: the best there is for a named model, where it is for one of your own."""
    batch: int = setting(64, "Images per forward pass.", at_least=1, group=_WORK)
    workers: int = setting(0, "Processes that read images.", at_least=0, group=_WORK)
    passes: int = setting(
        0,
        "Seeded passes of a network that draws at test time, such as MC dropout. Default: 0 (the "
        "network is deterministic).",
        at_least=0,
        group=_MODEL,
    )
    crop_pct: float | None = setting(
        None,
        "Share of the shorter side that the crop keeps. Default: the model's own.",
        above=0,
        at_most=1,
        group=_DATA,
    )
    crop_mode: CropMode | None = setting(
        None, "center, squash or border. Default: the model's own.", group=_DATA
    )
    interpolation: Interpolation | None = setting(
        None, "nearest, bilinear or bicubic. Default: the model's own.", group=_DATA
    )
    mean: tuple[float, ...] | None = setting(
        None, "Normalisation: 0.5 or 0.49,0.48,0.45. Default: the model's own.", group=_DATA
    )
    std: tuple[float, ...] | None = setting(
        None, "Standard deviation of the normalisation, written like --mean.", group=_DATA
    )
    augmentation: Augmentation | None = None
    """Of training images; as in the training of the weights if None, where that is known."""
    weight_decay: float | None = setting(
        None, "Weight decay of the loss. Default: that of the training, where known.", at_least=0
    )
    """0 where nobody knows."""
    label: str | None = field(default=None, compare=False)
    """What to call the subject; its model's name if None. No part of what is measured."""
    folder: str = field(default_factory=os.getcwd, compare=False)
    """Where relative paths begin."""

    def __post_init__(self) -> None:
        try:
            size = None if self.size is None else image_size(self.size)
        except WrongInput as error:
            raise WrongSetting(f"subject: size is wrong: {error}") from None
        object.__setattr__(self, "size", size)
        check(self, "subject")


def check_asked(models: Sequence[str], **settings: Any) -> None:
    """Refuse settings, data and files that cannot be used, before torch is imported.

    Whether a timm model exists is not known without timm; that is said when it is loaded.

    Args:
        models: Names, perhaps with labels.
        settings: Fields of :class:`SubjectSpecification`, as commands have read them.
    """
    for model in models:
        SubjectSpecification(split_label(model)[1], **settings)
        check_model_file(split_label(model)[1])
    check_data(settings.get("data", "cues"), settings.get("root"))
    if (weights := settings.get("weights")) and not Path(weights).is_file():
        raise UnreadableFile(f"There is no checkpoint {str(weights)!r}.")


def check_model_file(model: str) -> None:
    """Refuse a model's name that names a file which is not there."""
    asked = Specification.parse(model)
    file, _, function = asked.name.rpartition(":")
    if asked.name.endswith(".py"):
        raise UnknownModel(
            f"{model!r} names a file but no function. Write it as path/file.py:function"
        )
    if file.endswith(".py") and not Path(file).is_file():
        raise UnknownModel(f"There is no file {file!r} to take {function!r} from.")
    if asked.name.endswith(_FILES) and not Path(asked.name).is_file():
        raise UnknownModel(f"There is no file {asked.name!r} to build a model from.")
