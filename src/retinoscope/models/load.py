"""Names to models, for the whole tool.

==============================  ===================================================================
``resnet50.a1_in1k``            a timm model, with an optional tag of its weights
``vit_tiny_patch16_224:img_size=32,patch_size=4``  the same, built with options
``torchvision:resnet50``        a torchvision model
``hf:PATH_OR_NAME``             a transformers model: a folder, a ``config.json``, a name on the hub
``path/file.py:function``       whatever your own function returns; this runs the file
==============================  ===================================================================
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retinoscope.core.errors import UnknownModel, WeightsUnavailable, did_you_mean, first_line
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.specification import Specification
from retinoscope.models.checkpoint import load_weights, state_hash
from retinoscope.models.preprocessing import from_timm, from_torchvision, from_transformers


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, and where its weights come from."""

    name: str
    model: nn.Module
    weights: str
    """A tag, a file and its hash, or ``untrained, seed 0``."""
    image: tuple[int, int, int]
    """Channels, height and width of the images it is made for."""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """How it wants its images, by its own published configuration."""
    classes: tuple[str, ...] | None = None
    """The names of its answers, where the model itself says so."""
    trained: bool | None = None
    """Whether its weights have learned something; None where nobody knows."""


def load_model(
    name: str,
    *,
    pretrained: bool = True,
    weights: Path | str | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
) -> LoadedModel:
    """Build the model called ``name`` and give it its weights.

    Args:
        name: See the table at the top of this file; options stand behind it as ``:key=value``.
        pretrained: Load the published weights; False asks for random ones by ``seed``.
        weights: A ``.safetensors`` or ``.pth`` file to take the weights from instead.
        seed: Of random weights. The global generator is left as it was.
        allow_pickle: Read ``.pth`` files that run code. Only for files whose maker you trust.
    """
    specification = Specification.parse(name)
    source, build = _source(specification)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = build(source, specification.options, pretrained and weights is None)
    model = built.model.eval()
    called = built.weights or f"untrained, seed {seed}"
    trained = None if build is _build_from_file else built.weights is not None
    if weights is not None:
        called, trained = load_weights(model, Path(weights), allow_pickle), True
    return LoadedModel(
        name, model, called, built.image, built.preprocessing, built.classes, trained
    )


@dataclass(frozen=True)
class _Built:
    model: nn.Module
    weights: str | None
    """None for random ones."""
    image: tuple[int, int, int]
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None = None


Builder = Callable[[str, Mapping[str, Any], bool], _Built]


def _source(specification: Specification) -> tuple[str, Builder]:
    prefix, colon, rest = specification.name.partition(":")
    if colon and prefix == "torchvision":
        return rest, _build_torchvision
    if colon and prefix == "hf":
        return rest, _build_transformers
    if ".py:" in specification.name or specification.name.endswith(".py"):
        return specification.name, _build_from_file
    return specification.name, _build_timm


def _build_timm(name: str, options: Mapping[str, Any], pretrained: bool) -> _Built:
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UnknownModel(
            f"timm has no model {architecture!r}. {did_you_mean(architecture, timm.list_models())}"
            "Other sources: torchvision:NAME, hf:PATH_OR_NAME, path/file.py:function"
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
    return _Built(model, f"timm {used}" if pretrained else None, image, from_timm(model, image))


def _build_torchvision(name: str, options: Mapping[str, Any], pretrained: bool) -> _Built:
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
    image = (3, size, size)
    used = f"torchvision {default}" if pretrained else None
    names = default.meta.get("categories") if default is not None else None
    asked = "num_classes" in options
    return _Built(
        model,
        used,
        image,
        from_torchvision(default, image),
        tuple(names) if names and not asked else None,
    )


def _crop(weights: Any) -> int:
    """The image size that a model's published preprocessing ends in."""
    crop = getattr(weights.transforms(), "crop_size", None) if weights is not None else None
    return int(crop[0]) if crop else 224


def _build_transformers(path: str, options: Mapping[str, Any], pretrained: bool) -> _Built:
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
    size = getattr(configuration, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    used = f"transformers {path}" if pretrained else None
    image = (getattr(configuration, "num_channels", 3), height, width)
    names = getattr(configuration, "id2label", None) or {}
    given = tuple(names[place] for place in sorted(names))
    unnamed = all(str(name).startswith("LABEL_") for name in given)
    return _Built(model, used, image, from_transformers(path, image), None if unnamed else given)


def _build_from_file(name: str, options: Mapping[str, Any], pretrained: bool) -> _Built:
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not function or not file:
        raise UnknownModel(
            f"{name!r} names a file but no function. Write it as path/file.py:function"
        )
    if not path.is_file():
        raise UnknownModel(f"There is no file {file!r} to take {function!r} from.")
    module = _import(path)
    maker = getattr(module, function, None)
    if not callable(maker):
        public = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise UnknownModel(
            f"{file} has no function {function!r}. {did_you_mean(function, public)}"
            f"It has: {', '.join(public) or 'none'}."
        )
    try:
        inspect.signature(maker).bind(**options)
    except TypeError as error:
        raise UnknownModel(f"{name} cannot be built with these options: {error}.") from None
    try:
        model = maker(**options)
    except Exception as error:
        raise _broken(name, error) from error
    if not isinstance(model, nn.Module):
        raise UnknownModel(f"{name} returned {type(model).__name__}, not an nn.Module.")
    size = options.get("img_size", options.get("image_size", 224))
    height, width = (size, size) if isinstance(size, int) else size
    image = (3, height, width)
    called = f"{path.name}:{function}, weights {state_hash(model)}"
    return _Built(model, called, image, from_timm(model, image))


def _import(path: Path) -> Any:
    """The user's file as a module; files beside it can be imported from it."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise UnknownModel(f"{str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise _broken(str(path), error) from error
    finally:
        sys.path.pop(0)
    return module


def _broken(name: str, error: Exception) -> UnknownModel:
    """Our own error for code of the user's that fails, with the line where it does."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else (
        f"{frame.filename}:{frame.lineno}"
    )  # fmt: skip
    return UnknownModel(f"{name} fails: {type(error).__name__}: {first_line(error)} ({place})")


def _create(name: str, build: Callable[[], Any], pretrained: bool) -> Any:
    """Build; what the hub or the network has to complain about becomes our own error."""
    try:
        return build()
    except (OSError, ConnectionError) as error:
        if pretrained:
            raise _unavailable(name, first_line(error)) from error
        raise UnknownModel(f"{name} cannot be built: {first_line(error)}") from error
    except TypeError as error:
        raise UnknownModel(f"{name} cannot be built with these options: {error}") from error
    except Exception as error:
        if pretrained and "huggingface_hub" in type(error).__module__:
            raise _unavailable(name, first_line(error)) from error
        raise


def _unavailable(name: str, why: str) -> WeightsUnavailable:
    return WeightsUnavailable(
        f"The weights of {name} cannot be had: {why.rstrip('.')}. Two ways out: random weights "
        "with --untrained (in Python pretrained=False), or a file of your own with --weights "
        "F.safetensors (in Python weights=…)."
    )
