"""Weights with the way to build their model: a ``.safetensors`` file that says what it belongs to.

The way (a model's name, the surgeries done on it, the image size) lies in the file's metadata as
JSON; nothing in it is run. Such a file is a model's name in its own right.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from retinoscope.core.errors import UnreadableFile
from retinoscope.core.files import write_atomically
from retinoscope.core.specification import Specification
from retinoscope.models.damage import unreadable

_ENTRY = "retinoscope"


@dataclass(frozen=True)
class Construction:
    """How to build a model before it gets its weights."""

    schema: ClassVar[int] = 1

    model: str
    """A name that ``load_model`` knows."""
    surgeries: tuple[str, ...]
    """In the order in which they were done, as they are written."""
    size: tuple[int, int]
    """Height and width of the images for which they were done."""
    weights: str
    """Which weights the model had before."""
    trained: bool | None = None
    """Whether they had learned something."""
    mean: tuple[float, ...] | None = None
    """Normalisation of its images; None for that of the model by its name."""
    std: tuple[float, ...] | None = None


def names_code(model: str) -> bool:
    """Whether a model's name is that of a function in a file, which runs when it is loaded."""
    source = Specification.parse(model).name
    return source.endswith(".py") or ".py:" in source


def write_built(path: Path, model: nn.Module, construction: Construction) -> None:
    """Write the model's weights with the way to build it, whole or not at all."""
    plain = {"schema": construction.schema} | asdict(construction)
    for key in ("mean", "std"):  # what older versions do not know is written only where it is set
        if plain[key] is None:
            del plain[key]
    # Tensors that share memory are written once each: a key is then never missing.
    state = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    write_atomically(path, save(state, {_ENTRY: json.dumps(plain, ensure_ascii=False)}))


def read_construction(path: Path) -> Construction | None:
    """How to build the model whose weights a file holds; None where the file does not say."""
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_ENTRY)
    except (SafetensorError, OSError):
        raise unreadable(path) from None
    return None if text is None else _construction(text, path)


def _construction(text: str, path: Path) -> Construction:
    try:
        plain: dict[str, Any] = json.loads(text)
        found = plain.pop("schema")
        if found != Construction.schema:
            raise UnreadableFile(
                f"{str(path)!r} was built in the form {found}, but this version reads "
                f"{Construction.schema}. Build it again with: retinoscope build"
            )
        height, width = plain.pop("size")
        for key in plain.keys() & {"mean", "std"}:
            plain[key] = tuple(map(float, plain[key]))
        return Construction(
            size=(int(height), int(width)), surgeries=tuple(plain.pop("surgeries")), **plain
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile(
            f"What {str(path)!r} says about its model is damaged: {type(error).__name__}: {error}. "
            "Build it again with: retinoscope build"
        ) from None
