"""Everything that determines a subject, as plain values that can be sent to another process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from retinoscope.core.errors import UnknownModel, WrongInput
from retinoscope.core.missing import check_built_file, check_weights_file, function_in_file
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
    """Everything that determines a subject, as plain values from which it can be rebuilt.

    Commands derive their flags from these fields; ``help`` and ``group`` appear in ``--help``.
    """

    model: str = setting(REQUIRED, "A model name known to load_model.", group=_MODEL)
    data: str = setting(
        "cues",
        "cues (embedded, the default), cifar10, cifar100, imagenet, a folder of photos or of class "
        "folders, a .parquet file, hf:NAME. See: retinoscope list data",
        group=_DATA,
    )
    root: str | None = setting(
        None,
        "Folder that contains the named datasets. Default: the environment variable "
        "RETINOSCOPE_DATA.",
        group=_DATA,
    )
    images: int | None = setting(
        512,
        "Images per split, balanced over classes, or all. Default: 512 (256 with --preset quick "
        "of examine).",
        at_least=1,
        group=_DATA,
    )
    """None for all."""
    size: tuple[int, int] | None = setting(
        None,
        "Image size: 224, or 224x160 for height x width. Default: the model's own.",
        group=_DATA,
    )
    """One number means a square image."""
    pretrained: bool = setting(
        True,
        "Use random weights from --seed instead of published weights.",
        flag="--untrained",
        group=_MODEL,
    )
    weights: str | None = setting(
        None, "A .safetensors or .pth weight file, for a single model.", group=_MODEL
    )
    allow_pickle: bool = setting(
        False,
        "Read a .pth file that executes code when loaded. Use only for files you trust.",
        group=_MODEL,
    )
    output: str | None = setting(
        None, "Key or index of the logits in a dict or tuple output.", group=_MODEL
    )
    seed: int = setting(
        0,
        "Random seed for weights and image selection.",
        at_least=0,
        at_most=MAX_SEED,
        group=_WORK,
    )
    precision: Precision | None = setting(
        None, "float32 (default), float64, bfloat16 or float16.", group=_MODEL
    )
    """None: float32 for a named model, unchanged for a module of your own."""
    device: str | None = setting(
        None, "cuda, cuda:1, mps or cpu. Default: the fastest device available.", group=_MODEL
    )
    """None: the fastest device for a named model, unchanged for a module of your own."""
    batch: int = setting(64, "Images per forward pass.", at_least=1, group=_WORK)
    workers: int = setting(0, "Number of processes that read images.", at_least=0, group=_WORK)
    passes: int = setting(
        0,
        "Seeded forward passes of a network that is random at test time, such as MC dropout. "
        "Default: 0 (the network is deterministic).",
        at_least=0,
        group=_MODEL,
    )
    crop_pct: float | None = setting(
        None,
        "Fraction of the shorter side kept by the crop. Default: the model's own.",
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
    """Augmentation of training images; if None, that of the model's training if known."""
    weight_decay: float | None = setting(
        None,
        "Weight decay of the loss. Default: that of the model's training, if known.",
        at_least=0,
    )
    """None: that of the model's training; 0 if unknown."""
    label: str | None = field(default=None, compare=False)
    """Display name of the subject; None: the model's name. It does not affect results."""
    folder: str = field(default_factory=os.getcwd, compare=False)
    """The folder that relative paths refer to."""

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
    if weights := settings.get("weights"):
        check_weights_file(weights)


def check_model_file(model: str) -> None:
    """Refuse a model's name that names a file which is not there."""
    name = Specification.parse(model).name
    if name.endswith(".py") or name.rpartition(":")[0].endswith(".py"):
        function_in_file(name, UnknownModel)
    elif name.endswith(_FILES):
        check_built_file(name)
