"""Flags made from the fields of dataclasses, and what their texts mean.

A field becomes a flag by its name, its type, its help and its default, so that a setting is
described once. A flag that is not given is not passed on: the default is the field's own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from retinoscope.core.errors import WrongInput
from retinoscope.core.settings import hint

MODEL = """A timm name, [cyan]torchvision:NAME[/], [cyan]hf:FOLDER_OR_NAME[/],
[cyan]path/file.py:function[/], or a file that was built or trained before; options follow a colon:
[cyan]resnet50:num_classes=10[/]"""


def with_fields(
    parameter: str,
    kind: type[Any],
    *names: str,
    panel: str | None = None,
    shown: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a flag for each of some fields, in the place of one of its parameters.

    Args:
        parameter: The command gets what was given as a dict by this name.
        kind: The dataclass whose fields are meant.
        names: Which of them, in the order of the help.
        panel: The heading of the flags; the group of each field if not given.
        shown: Defaults to show where the command has others than the fields; empty for none.
    """
    known = {one.name: one for one in fields(kind)}
    flags = [_flag(kind, known[name], panel, (shown or {}).get(name)) for name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def wrapped(**given: Any) -> None:
            taken = {name: given.pop(name) for name in names}
            asked = {k: _read(known[k], v) for k, v in taken.items() if v is not None}
            command(**given, **{parameter: asked})

        parameters = []
        for one in own.parameters.values():
            parameters += flags if one.name == parameter else [one]
        ordered = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        wrapped.__signature__ = own.replace(parameters=ordered)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {one.name: one.annotation for one in ordered}
        return wrapped

    return decorate


def _flag(
    kind: type[Any], one: Field[Any], panel: str | None, shown: str | None
) -> inspect.Parameter:
    wanted = hint(kind, one.name)
    taken = Path if one.name in _PATHS else wanted if wanted in (int, float, bool) else str
    if one.name in _READERS:
        taken = str
    # What None stands for is told in the help itself.
    said = wanted is bool or one.default in (None, "", MISSING) or "efault" in one.metadata["help"]
    default = shown if shown is not None else "" if said else str(one.default)
    option = Option(
        one.metadata["flag"] or f"--{one.name.replace('_', '-')}",
        help=one.metadata["help"] + f" Default: {default}." * bool(default),
        show_default=False,
        rich_help_panel=panel or one.metadata["group"] or None,
    )
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[taken | None, option],
    )


def _read(one: Field[Any], given: Any) -> Any:
    """What was given, as the field wants it."""
    if one.name in _PATHS:
        return str(given.expanduser().absolute())
    if one.name in _READERS:
        return _READERS[one.name](given)
    # A flag with a name of its own turns off what is on by default.
    return not given if one.metadata["flag"] and isinstance(given, bool) else given


def how_many(text: str) -> int | None:
    """A number of images; None for all.

    Example:
        >>> how_many("256"), how_many("all")
        (256, None)
    """
    if text.strip().lower() == "all":
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise WrongInput(f"--images is a number from 1 on, or all; got {text!r}.")
    return int(text)


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from ``224`` or ``224x160``.

    Example:
        >>> parse_size("224x160"), parse_size("32")
        ((224, 160), (32, 32))
    """
    sides = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.strip())
    if not sides:
        raise WrongInput(f"{text!r} is no image size. Write 224, or 224x160 for height x width.")
    height, width = int(sides[1]), int(sides[2] or sides[1])
    if not height or not width:
        raise WrongInput(f"--size {text} has no pixels: height and width are 1 or more.")
    return height, width


def _numbers(flag: str) -> Callable[[str], tuple[float, ...]]:
    def read(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(part) for part in text.split(","))
        except ValueError:
            raise WrongInput(
                f"{flag} is a number or one per channel, such as 0.5,0.5,0.5; got {text!r}."
            ) from None

    return read


_PATHS = ("root", "weights")
"""Fields that are paths; another process may have another current folder."""
_READERS: dict[str, Callable[[str], Any]] = {
    "images": how_many,
    "size": parse_size,
    "mean": _numbers("--mean"),
    "std": _numbers("--std"),
}
"""Fields whose flags are written otherwise than their values."""
