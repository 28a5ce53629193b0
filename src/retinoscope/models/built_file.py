"""Files of built models: ``.safetensors`` weights that say how to build their model.

The construction (the model's name, its surgeries and the image size) is stored as JSON in the
file's metadata; none of it is run as code. The path of such a file can be used as a model name.
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
    """A name that ``load_model`` accepts."""
    surgeries: tuple[str, ...]
    """Surgeries in string form, in the order in which they were applied."""
    size: tuple[int, int]
    """Image height and width for which the surgeries were applied."""
    weights: str
    """The weights that the model had before the surgeries."""
    trained: bool | None = None
    """Whether these weights were trained; None if unknown."""
    mean: tuple[float, ...] | None = None
    """Mean of the normalisation; None for the model's own."""
    std: tuple[float, ...] | None = None


def names_code(model: str) -> bool:
    """Return whether a model name refers to a function in a file, which runs when loaded."""
    source = Specification.parse(model).name
    return source.endswith(".py") or ".py:" in source


def write_built(path: Path, model: nn.Module, construction: Construction) -> None:
    """Write the model's weights and construction to a file, atomically."""
    plain = {"schema": construction.schema} | asdict(construction)
    for key in ("mean", "std"):  # older versions do not know these keys: write them only if set
        if plain[key] is None:
            del plain[key]
    # Cloned, so that tensors that share memory are written under each of their keys.
    state = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    write_atomically(path, save(state, {_ENTRY: json.dumps(plain, ensure_ascii=False)}))


def read_construction(path: Path) -> Construction | None:
    """Read how to build the model of a weights file; None if the file does not say."""
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
