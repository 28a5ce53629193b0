"""Load models by name.

==============================  ===================================================================
``resnet50.a1_in1k``            a timm model, optionally with the tag of its weights
``vit_tiny_patch16_224:img_size=32,patch_size=4``  the same, built with options
``torchvision:resnet50``        a torchvision model
``hf:PATH_OR_NAME``             a transformers model: a folder, a ``config.json``, a name on the hub
``path/file.py:function``       whatever your own function returns; this runs the file
``path/file.safetensors``       a file of ``retinoscope build``: model, surgeries and weights
``NAME:weights=FILE``           any of these with the weights of a ``.safetensors`` or ``.pth`` file
==============================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retinoscope.core.errors import NotApplicable, UnknownModel, WeightsMismatch
from retinoscope.core.missing import check_built_file
from retinoscope.core.preprocessing import Preprocessing, Size
from retinoscope.core.probe import UNTRAINED
from retinoscope.core.specification import Specification
from retinoscope.models.assumed import Channels, settled
from retinoscope.models.built_file import Construction, names_code, read_construction
from retinoscope.models.checkpoint import CHECKPOINTS, load_weights
from retinoscope.models.finite import check_finite
from retinoscope.models.history import find_history
from retinoscope.models.redraw import WeightsFixed, redrawn
from retinoscope.models.sources import (
    SIZE,
    Builder,
    Built,
    build_from_file,
    build_timm,
    build_torchvision,
    build_transformers,
    takes_argument,
)
from retinoscope.surgery.operate import operate


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, and where its weights come from."""

    name: str
    model: nn.Module
    weights: str
    """A tag, a file with its hash, or ``untrained, seed 0``."""
    image: tuple[int, int, int]
    """Channels, height and width of the images that the model expects."""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """Preprocessing from the model's published configuration, with the requested changes."""
    classes: tuple[str, ...] | None = None
    """Class names, if the model provides them."""
    trained: bool | None = None
    """Whether the weights were trained; None if unknown."""
    construction: Construction | None = None
    """How the model was built, if it comes from a file of ``retinoscope build``."""
    history: Path | None = None
    """Folder of the training that wrote the weights, if it can be found."""
    assumed: tuple[str, ...] = ()
    """What had to be assumed about the images, in words: size, mean and std."""


def load_model(
    name: str,
    *,
    pretrained: bool = True,
    weights: Path | str | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
    size: Size | None = None,
    mean: Channels | None = None,
    std: Channels | None = None,
) -> LoadedModel:
    """Build the model ``name`` and load its weights.

    Args:
        name: See the table at the top of this file; options follow as ``:key=value``.
        pretrained: Load the published weights. False: random weights drawn from ``seed``.
        weights: A ``.safetensors`` or ``.pth`` file to load instead.
        seed: Random seed of untrained weights. The state of torch's global generator is kept.
        allow_pickle: Also read ``.pth`` files that run code. Only use this for files you trust.
        size: Image size: 224, or (height, width). Default: the model's own; if it has none, a size
            is assumed and listed in ``assumed``.
        mean: Mean of the normalisation, one number or one per channel. Default: the model's own.
        std: Standard deviation of the normalisation, likewise.
    """
    specification, named_weights = split_weights(Specification.parse(name))
    weights = weights or named_weights
    source, build = _source(specification)
    way = None if weights is None else read_construction(Path(weights))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if build is build_from_file and weights is not None:
            build = partial(build_from_file, redraw=False)
        built = build(source, specification.options, pretrained and weights is None)
        if way is not None and build is not _build_from_weights:
            built = _operated(built, _checked(way, name, str(weights)))
    model = built.model.eval()
    built, assumed = settled(built, size, mean, std)
    called, trained = built.weights or _untrained(seed, built.drawn), built.trained
    if weights is not None:
        called = load_weights(model, Path(weights), allow_pickle)
        trained = way.trained if way is not None else True
    check_finite(model, called)
    named = source if build is _build_from_weights and pretrained else built.file
    file = named if weights is None else weights
    return LoadedModel(
        name,
        model,
        called,
        built.image,
        built.preprocessing,
        built.classes,
        trained,
        built.construction,
        None if file is None else find_history(file),
        assumed,
    )


def split_weights(specification: Specification) -> tuple[Specification, str | None]:
    """Return a name without its option ``weights``, and that file; None if there is none.

    If the model is a function in the user's own file with an argument ``weights``, the option is
    left to it.
    """
    options = dict(specification.options)
    file = options.pop("weights", None)
    if not isinstance(file, str) or not file.endswith(CHECKPOINTS):
        return specification, None
    if takes_argument(specification.name, "weights"):
        return specification, None
    return Specification(specification.name, options), file


def untrained(model: str | nn.Module, weights: str | None = None, seed: int = 0) -> str | nn.Module:
    """What ``pretrained=False`` turns into the same network with random weights.

    Args:
        model: A name, perhaps with the option ``weights``, or a module.
        weights: The file of its weights. If it describes a model with its surgeries, it is that.
        seed: Random seed for the weights of a module.

    Example:
        >>> untrained("micro_vit:img_size=64", "end.pth")
        'micro_vit:img_size=64'
    """
    why = "needs the same network with random weights, but"
    if isinstance(model, nn.Module):
        try:
            return redrawn(model, type(model).__name__, seed)
        except WeightsFixed as error:
            raise NotApplicable(f"{why} {error}") from None
    specification, named = split_weights(Specification.parse(model))
    file = weights or named
    way = None if file is None or not Path(file).is_file() else read_construction(Path(file))
    if way is None:
        return str(specification)
    if names_code(way.model):
        raise NotApplicable(
            f"{why} {file} describes surgeries on {way.model}, which is code that is not run "
            "without being named. Pass the network as a module: "
            f"load_subject(…, others={{'{UNTRAINED}': module}})"
        )
    return str(file)


def _untrained(seed: int, drawn: str) -> str:
    return f"untrained, seed {seed}" + f", {drawn}" * bool(drawn)


def _source(specification: Specification) -> tuple[str, Builder]:
    prefix, colon, rest = specification.name.partition(":")
    if colon and prefix == "torchvision":
        return rest, build_torchvision
    if colon and prefix == "hf":
        return rest, build_transformers
    if ".py:" in specification.name or specification.name.endswith(".py"):
        return specification.name, build_from_file
    if specification.name.endswith(".safetensors"):
        return specification.name, _build_from_weights
    return specification.name, build_timm


def _build_from_weights(path: str, options: Mapping[str, Any], pretrained: bool) -> Built:
    """Build the model that a weights file describes, including its surgeries."""
    file = Path(path)
    check_built_file(file)
    if options:
        raise UnknownModel(f"{path!r} is built as it was saved; it takes no options.")
    way = read_construction(file)
    if way is None:
        raise UnknownModel(
            f"{path!r} holds weights, but does not say of which model. Name the model and give the "
            f"file with --weights {path} (in Python weights=…)."
        )
    specification = Specification.parse(way.model)
    source, build = _source(specification)
    if build is build_from_file:  # the author of the file must not choose which code runs here
        raise UnknownModel(
            f"{path!r} was built from {way.model}, which is code of its maker's. If you trust it, "
            f"name it yourself: {way.model} with --weights {path} (in Python weights=…), or as one "
            f"name, {_with_weights(way.model, path)}"
        )
    built = _operated(build(source, specification.options, False), way)
    if not pretrained:
        return replace(built, trained=False)
    return replace(built, weights=load_weights(built.model, file), trained=way.trained)


def _checked(way: Construction, name: str, weights: str) -> Construction:
    """Return the construction; raise an error if it is not for the model ``name``."""
    ours, theirs = (split_weights(Specification.parse(n))[0] for n in (name, way.model))
    same = Path(ours.name).name == Path(theirs.name).name and ours.options == theirs.options
    if not same:
        raise WeightsMismatch(
            f"{weights!r} was built from {way.model}, not from {name}. Name the file alone as the "
            f"model, or that model: {way.model}"
        )
    return way


def _with_weights(model: str, path: str) -> str:
    asked = Specification.parse(model)
    return str(Specification(asked.name, {**asked.options, "weights": path}))


def _operated(base: Built, way: Construction) -> Built:
    """Apply the surgeries of a construction, for the image size that it was made for."""
    own = base.preprocessing
    own = replace(own, mean=way.mean or own.mean, std=way.std or own.std)
    unknown = () if way.mean and way.std else tuple(k for k in base.unknown if k != SIZE)
    return replace(
        base,
        model=operate(base.model.eval(), *way.surgeries, example=way.size, name=way.model),
        image=(base.image[0], *way.size),
        preprocessing=own if own.size == way.size else replace(own, size=way.size, crop_pct=1.0),
        construction=way,
        unknown=unknown,
    )
