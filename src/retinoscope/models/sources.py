"""Build models from timm, torchvision, transformers and the user's own files."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retinoscope.anatomy.example import image_channels
from retinoscope.core.errors import UnknownModel, WeightsUnavailable, did_you_mean, first_line
from retinoscope.core.missing import function_in_file
from retinoscope.core.preprocessing import Preprocessing, Size, image_size
from retinoscope.models.built_file import Construction
from retinoscope.models.checkpoint import state_hash
from retinoscope.models.preprocessing import (
    from_timm,
    from_torchvision,
    from_transformers,
    processed_size,
    processor,
)
from retinoscope.models.redraw import drawn_by_seed
from retinoscope.models.sizing import takes

SIZE, NORMALISATION = "size", "mean and std"


@dataclass(frozen=True)
class Built:
    """A model as returned by its source."""

    model: nn.Module
    weights: str | None
    """Name of the weights; None for random weights."""
    image: tuple[int, int, int]
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None = None
    trained: bool | None = None
    construction: Construction | None = None
    file: Path | None = None
    """Path of the weights, if they are part of this package."""
    drawn: str = ""
    """How random weights were drawn, if not by the model's own code."""
    unknown: tuple[str, ...] = ()
    """What the source does not say about the images: ``SIZE``, ``NORMALISATION``."""


Builder = Callable[[str, Mapping[str, Any], bool], Built]


def build_timm(name: str, options: Mapping[str, Any], pretrained: bool) -> Built:
    """Build a timm model, including our own."""
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UnknownModel(
            f"timm has no model {architecture!r}. {did_you_mean(architecture, timm.list_models())}"
            "List all with: retinoscope list models. Other sources: torchvision:NAME, "
            "hf:PATH_OR_NAME, path/file.py:function"
        )
    tags = [t.partition(".")[2] for t in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        known = f"It has: {', '.join(tags)}." if tags else "It has none."
        raise WeightsUnavailable(f"{architecture} has no weights tagged {tag!r}. {known}")
    if pretrained and not tags:
        raise _unavailable(name, "timm has none for this model")
    model = _create(
        name, lambda: timm.create_model(name, pretrained=pretrained, **options), pretrained
    )
    configuration = model.pretrained_cfg
    channels, height, width = configuration["input_size"]
    channels = options.get("in_chans", channels)
    size = options.get("img_size")
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
    used = f"{architecture}.{configuration['tag']}" if configuration.get("tag") else architecture
    image = (channels, height, width)
    packaged = configuration.get("file") if pretrained else None
    return Built(
        model,
        f"{'retinoscope' if packaged else 'timm'} {used}" if pretrained else None,
        image,
        from_timm(model, image),
        trained=pretrained,
        file=Path(packaged) if packaged else None,
    )


def build_torchvision(name: str, options: Mapping[str, Any], pretrained: bool) -> Built:
    """Build a torchvision model, with its default weights if ``pretrained``."""
    from torchvision import models

    if name not in models.list_models():
        raise UnknownModel(
            f"torchvision has no model {name!r}. {did_you_mean(name, models.list_models())}"
            "List them all with: torchvision.models.list_models()"
        )
    published = models.get_model_weights(name)
    default = getattr(published, "DEFAULT", None)
    if pretrained and default is None:
        raise _unavailable(f"torchvision:{name}", "torchvision has none for this model")
    chosen = default if pretrained else None
    model = _create(
        f"torchvision:{name}", lambda: models.get_model(name, weights=chosen, **options), pretrained
    )
    size = options.get("image_size") or _crop(default)
    image = (3, size or 224, size or 224)
    used = f"torchvision {default}" if pretrained else None
    names = default.meta.get("categories") if default is not None else None
    asked = "num_classes" in options
    return Built(
        model,
        used,
        image,
        from_torchvision(default, image),
        tuple(names) if names and not asked else None,
        trained=pretrained,
        unknown=(SIZE,) * (not size) + (NORMALISATION,) * (_crop(default) is None),
    )


def _crop(weights: Any) -> int | None:
    """Return the crop size of a model's published preprocessing; None if it has none."""
    crop = getattr(weights.transforms(), "crop_size", None) if weights is not None else None
    return int(crop[0]) if crop else None


def build_transformers(path: str, options: Mapping[str, Any], pretrained: bool) -> Built:
    """Build a transformers model for image classification."""
    try:
        from transformers import AutoConfig, AutoModelForImageClassification
    except ImportError:
        raise UnknownModel(
            f"hf:{path} needs the package transformers. "
            "Install it with: pip install 'retinoscope[hf]'"
        ) from None

    def configure() -> Any:
        return AutoConfig.from_pretrained(path, trust_remote_code=False, **options)

    def build() -> nn.Module:
        if not pretrained:
            return AutoModelForImageClassification.from_config(configuration)
        return AutoModelForImageClassification.from_pretrained(path, config=configuration)

    if pretrained and path.endswith(".json"):
        raise _unavailable(f"hf:{path}", "a configuration has no weights")
    configuration = _create(f"hf:{path}", configure, pretrained)
    model = _create(f"hf:{path}", build, pretrained)
    size = getattr(configuration, "image_size", None) or processed_size(path)
    used = f"transformers {path}" if pretrained else None
    image = (getattr(configuration, "num_channels", 3), *image_size(size or 224))
    names = getattr(configuration, "id2label", None) or {}
    given = tuple(names[place] for place in sorted(names))
    unnamed = all(str(name).startswith("LABEL_") for name in given)
    return Built(
        model,
        used,
        image,
        from_transformers(path, image),
        None if unnamed else given,
        trained=pretrained,
        unknown=(SIZE,) * (not size) + (NORMALISATION,) * (not processor(path)),
    )


def build_from_file(
    name: str, options: Mapping[str, Any], pretrained: bool, redraw: bool = True
) -> Built:
    """Build the model that a function in the user's own file returns.

    If the function has an argument ``pretrained``, it gets False when random weights are requested.
    Otherwise, if its weights are the same for every seed, they are redrawn. ``redraw=False`` skips
    this, for weights that are replaced afterwards.
    """
    path, function = function_in_file(name, UnknownModel)
    before = torch.get_rng_state()
    module = _import(path)
    torch.set_rng_state(before)  # a file that sets a seed on import must not affect the weights
    maker = getattr(module, function, None)
    if not callable(maker):
        public = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise UnknownModel(
            f"{path} has no function {function!r}. {did_you_mean(function, public)}"
            f"It has: {', '.join(public) or 'none'}."
        )
    asked = inspect.signature(maker).parameters
    told = "pretrained" in asked
    # Its own default decides whether weights are loaded, unless random ones are requested.
    given = {"pretrained": False} | dict(options) if told and not pretrained else dict(options)
    try:
        inspect.signature(maker).bind(**given)
    except TypeError as error:
        raise UnknownModel(
            f"{name} cannot be built with these options: {error}. Write them as its parameters are "
            f"called: {name}:key=value,key=value"
        ) from None
    size = _declared_size(maker, options)
    if pretrained or told or not redraw:
        model = _made(name, maker, given)
        own = bool(given.get("pretrained", pretrained))
        called = f"{path.name}:{function}, weights {state_hash(model)}" if own else None
        return replace(describe_module(model, called, size), trained=None if own else False)
    model, drawn = drawn_by_seed(name, lambda: _made(name, maker, given))
    return replace(describe_module(model, None, size), trained=False, drawn=drawn)


def takes_argument(name: str, argument: str) -> bool:
    """Return whether ``name`` is a function in a file with this argument; the file is not run."""
    file, _, function = name.rpartition(":")
    try:
        found = ast.parse(Path(file).read_bytes()) if file.endswith(".py") else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):  # reported when the file is loaded
        return False
    return any(
        argument in {one.arg for one in [*node.args.args, *node.args.kwonlyargs]}
        for node in found.body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )


def _made(name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> nn.Module:
    """Call the user's function and return its model."""
    try:
        model = maker(**options)
    except Exception as error:
        raise _broken(name, error) from error
    if not isinstance(model, nn.Module):
        raise UnknownModel(
            f"{name} returned {type(model).__name__}, not an nn.Module. Let the function return "
            "the network."
        )
    return model


def describe_module(model: nn.Module, weights: str | None, size: Size | None = None) -> Built:
    """Describe the user's own module, with the image settings of its timm configuration, if any.

    Args:
        model: The module.
        weights: Name for its weights; None for random weights.
        size: Its image size, if known.
    """
    given = getattr(model, "pretrained_cfg", None)
    configured: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    channels, unknown = image_channels(model), []
    own = configured.get("input_size")
    if size is None and own and takes(model, (channels, own[1], own[2])):
        size = (own[1], own[2])
    if size is None:
        unknown.append(SIZE)
    if configured.get("mean") is None or configured.get("std") is None:
        unknown.append(NORMALISATION)
    image = (channels, *image_size(size or 224))
    return Built(model, weights, image, from_timm(model, image), unknown=tuple(unknown))


def _declared_size(maker: Callable[..., Any], options: Mapping[str, Any]) -> Size | None:
    """Return the image size passed to a function, or its default; None if there is neither."""
    for name in ("img_size", "image_size"):
        parameter = inspect.signature(maker).parameters.get(name)
        size = options.get(name, parameter and parameter.default)
        if isinstance(size, int | tuple | list):
            return image_size(size)
    return None


def _import(path: Path) -> Any:
    """Import the user's file as a module; it can import files from its own folder."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise UnknownModel(f"{str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        # Without the bytecode cache, which can miss a change made within the same second.
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except Exception as error:
        raise _broken(str(path), error) from error
    finally:
        sys.path.pop(0)
    return module


def _broken(name: str, error: Exception) -> UnknownModel:
    """Return our own error for user code that fails, with the line where it fails."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else (
        f"{frame.filename}:{frame.lineno}"
    )  # fmt: skip
    return UnknownModel(
        f"{name} fails: {type(error).__name__}: {first_line(error)} Fix it here: {place}"
    )


def _create(name: str, build: Callable[[], Any], pretrained: bool) -> Any:
    """Call ``build`` and turn its errors into our own."""
    try:
        return build()
    except (OSError, ConnectionError) as error:
        if pretrained:
            raise _unavailable(name, first_line(error)) from error
        raise UnknownModel(
            f"{name} cannot be built: {first_line(error)} Check the name and its files."
        ) from error
    except TypeError as error:
        raise UnknownModel(
            f"{name} cannot be built with these options: {error}. Options follow the name, as the "
            f"model's constructor calls them: {name}:num_classes=10"
        ) from error
    except Exception as error:
        if pretrained and "huggingface_hub" in type(error).__module__:
            raise _unavailable(name, first_line(error)) from error
        raise UnknownModel(
            f"{name} cannot be built: {type(error).__name__}: {first_line(error)} Check its "
            "options, or its files."
        ) from error


def _unavailable(name: str, why: str) -> WeightsUnavailable:
    return WeightsUnavailable(
        f"The weights of {name} cannot be had: {why.rstrip('.')}. Two ways out: random weights "
        "with --untrained (in Python pretrained=False), or a file of your own with --weights "
        "F.safetensors (in Python weights=…)."
    )
