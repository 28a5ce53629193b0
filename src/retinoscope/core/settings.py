"""The fields of a frozen dataclass as settings that people write: types, choices, errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from retinoscope.core.errors import RetinoscopeError, did_you_mean


class WrongSetting(RetinoscopeError, ValueError):
    """A setting does not exist, is missing, or has a value of another type."""


def setting(default: Any, text: str) -> Any:
    """A field of a dataclass with its default, and what it means."""
    return field(default=default, metadata={"help": text})


def make(kind: type[Any], given: Mapping[str, Any], called: str) -> Any:
    """An instance of a dataclass from settings by name; every name and value is checked.

    Args:
        kind: The dataclass.
        given: Its settings; numbers for a field of floats may be whole.
        called: What to call it in errors.
    """
    known = {one.name: one for one in fields(kind)}
    for name in given:
        if name not in known:
            raise WrongSetting(
                f"{called} has no setting {name!r}. {did_you_mean(name, list(known))}"
                f"It has: {', '.join(known) or 'none'}."
            )
    for name, one in known.items():
        required = one.default is MISSING and one.default_factory is MISSING
        if required and name not in given:
            raise WrongSetting(
                f"{called} needs {name}: {one.metadata.get('help', '')} "
                f"Write it as {called}:{name}=…"
            )
    values = {name: fitted(kind, name, value, called) for name, value in given.items()}
    try:
        return kind(**values)
    except WrongSetting:
        raise
    except ValueError as error:
        raise WrongSetting(f"{called}: {error}") from None


def check(instance: Any, called: str) -> None:
    """Make the fields of a frozen instance what their types want: for its ``__post_init__``."""
    for one in fields(instance):
        value = fitted(type(instance), one.name, getattr(instance, one.name), called)
        object.__setattr__(instance, one.name, value)


def described(kind: type[Any]) -> list[tuple[str, str, str]]:
    """Name, default and explanation of each setting."""
    rows = []
    for one in fields(kind):
        default = "required" if one.default is MISSING else str(one.default)
        words = choices(kind, one.name)
        text = one.metadata.get("help", "") + (f" One of: {', '.join(words)}." if words else "")
        unset = one.default is None or one.default == ""
        rows.append((one.name, "not set" if unset else default, text))
    return rows


def hint(kind: type[Any], name: str) -> Any:
    """The type of a field, without None where that is merely one of two."""
    found = _hints(kind)[name]
    if get_origin(found) in (Union, UnionType):
        others = [choice for choice in get_args(found) if choice is not NoneType]
        return others[0] if len(others) == 1 else found
    return found


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Read once: an annotation is a text until somebody asks."""
    return get_type_hints(kind.__init__)


def choices(kind: type[Any], name: str) -> tuple[str, ...]:
    """The words that a field may be; empty where it is not a choice between words."""
    found = hint(kind, name)
    return get_args(found) if get_origin(found) is Literal else ()


def fitted(kind: type[Any], name: str, value: Any, called: str) -> Any:
    """The value as the field's type wants it; refused where it is of another."""
    wanted = hint(kind, name)
    if value is None and NoneType in get_args(_hints(kind)[name]):
        return None
    if (words := choices(kind, name)) and value not in words:
        raise WrongSetting(f"{called}: {name} is one of {', '.join(words)}; got {value!r}.")
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise WrongSetting(f"{called}: {name} is a finite number; got {value!r}.")
        return float(value)
    if get_origin(wanted) is tuple:
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        inner = get_args(wanted)[0]
        if inner is float:
            items = tuple(float(item) if type(item) is int else item for item in items)
        if not all(type(item) is inner for item in items):
            raise WrongSetting(
                f"{called}: {name} is a row of {inner.__name__}, such as "
                f"{name}=({', '.join([str(inner(1))] * 2)}); got {value!r}."
            )
        return items
    if wanted in (int, float, bool, str) and type(value) is not wanted:
        raise WrongSetting(f"{called}: {name} is {_article(wanted)}; got {value!r}.")
    return value


def _article(kind: type) -> str:
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a word"}
    return words[kind]
