"""The fields of a frozen dataclass as settings that people write: types, choices, ranges, errors.

A field made by :func:`setting` carries its meaning and its range; :func:`check`, called in
``__post_init__``, refuses whatever does not fit, from Python and from a string alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from os import PathLike, fspath
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from retinoscope.core.errors import WrongInput, did_you_mean
from retinoscope.core.specification import Specification

REQUIRED: Any = MISSING
"""The default of a setting that has none."""
MAX_SEED = 2**32 - 1
RENAMED = {
    "towards": "target",
    "and_towards": "second_target",
    "reach": "radius",
    "at_most": "max_images",
}
"""What settings were called in earlier versions, and what they are called now."""
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
_ROWS = {int: "whole numbers", float: "numbers", bool: "True or False", str: "texts"}


class WrongSetting(WrongInput):
    """A setting does not exist, is missing, or has a value of another type or out of range."""


@dataclass(frozen=True)
class Range:
    """Which numbers a setting may be.

    Example:
        >>> str(Range(at_least=0, below=1)), str(Range(at_least=1)), str(Range(above=0, at_most=1))
        ('from 0 to below 1', '1 or more', 'above 0 and up to 1')
    """

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        most = f"{'' if self.above is None else 'up '}to {self.at_most}"
        upper = most if self.at_most is not None else f"below {self.below}"
        bounded = self.at_most is not None or self.below is not None
        if self.above is not None:
            return f"above {self.above}" + f" and {upper}" * bounded
        if self.at_least is None:
            return f"{self.at_most} or less" if self.at_most is not None else upper * bounded
        to = "" if self.at_most is not None else "to "
        return f"from {self.at_least} {to}{upper}" if bounded else f"{self.at_least} or more"


def setting(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    example: Any = None,
    flag: str = "",
    group: str = "",
) -> Any:
    """A field of a dataclass with its default, its meaning and its range.

    Args:
        default: ``REQUIRED`` where there is none.
        text: What it means, for people who have not read the code.
        at_least: The smallest number that it may be; of a row, each of its numbers.
        at_most: The largest.
        above: It must be larger than this.
        below: It must be smaller than this.
        example: A value to show; of a required setting, one that works.
        flag: What the flag of a command is called, where it is not the field's name.
        group: The heading under which a command shows the flag.
    """
    allowed = Range(at_least, at_most, above, below)
    told = {"help": text, "range": allowed, "example": example, "flag": flag, "group": group}
    return field(default=default, metadata=told)


class Described(NamedTuple):
    """A setting in words."""

    name: str
    values: str
    """What it may be."""
    default: str
    text: str
    """What it means."""


def make(kind: type[Any], given: Mapping[str, Any], called: str) -> Any:
    """An instance of a dataclass from settings by name; every name and value is checked.

    Args:
        kind: The dataclass.
        given: Its settings; numbers for a field of floats may be whole.
        called: What to call it in errors.
    """
    known = {one.name: one for one in fields(kind) if one.init}
    for name in given:
        if name not in known:
            now = RENAMED.get(name)
            hint = f"It is called {now} now: {called}:{now}={given[name]}. " if now in known else ""
            raise WrongSetting(
                f"{called} has no setting {name!r}. {hint or did_you_mean(name, list(known))}"
                f"It has: {', '.join(known) or 'none'}."
            )
    for name, one in known.items():
        if is_required(one) and name not in given:
            raise WrongSetting(
                f"{called} needs {name}: {one.metadata.get('help', '')} "
                f"Write it as {called}:{name}=…"
            )
    values = _all_fitted(kind, given, called)
    try:
        return kind(**values)
    except WrongSetting:
        raise
    except ValueError as error:
        raise WrongSetting(f"{called}: {error}") from None


def check(instance: Any, called: str) -> None:
    """Make the fields of a frozen instance what their types want: for its ``__post_init__``."""
    given = {one.name: getattr(instance, one.name) for one in fields(instance)}
    for name, value in _all_fitted(type(instance), given, called).items():
        object.__setattr__(instance, name, value)


def refuse(called: str, *rules: tuple[str, bool]) -> None:
    """Refuse where a rule between several settings does not hold: for a ``__post_init__``.

    Args:
        called: What to call the instance in errors.
        rules: How to say each rule, and whether it holds.
    """
    if broken := [text for text, holds in rules if not holds]:
        raise WrongSetting(f"{called}: {'; '.join(broken)}.")


def fitted(kind: type[Any], name: str, value: Any, called: str) -> Any:
    """The value as the field's type wants it; refused where it is of another, or out of range."""
    return _all_fitted(kind, {name: value}, called)[name]


def written(instance: Any, name: str) -> str:
    """``name:key=value,…`` with those settings that differ from their defaults."""
    changed = {
        one.name: value
        for one in fields(instance)
        if (value := getattr(instance, one.name)) != _default(one) or is_required(one)
    }
    return str(Specification(name, changed))


def example(kind: type[Any], name: str, most: int = 2) -> str:
    """``name:key=value,…`` to imitate: what is required, else the first settings that are set."""
    given = {one.name: one.metadata.get("example") for one in fields(kind) if is_required(one)}
    if not given:
        defaults = {one.name: _default(one) for one in fields(kind)}
        given = dict([(k, v) for k, v in defaults.items() if v not in (None, "", ())][:most])
    return str(Specification(name, given))


def described(kind: type[Any]) -> list[Described]:
    """Each setting in words."""
    rows = []
    for one in fields(kind):
        default = _default(one)
        shown = "not set" if default is None or default == "" else str(default)
        shown = "required" if is_required(one) else shown
        rows.append(
            Described(one.name, values(kind, one.name), shown, one.metadata.get("help", ""))
        )
    return rows


def values(kind: type[Any], name: str) -> str:
    """What a setting may be, in words: its choices, or its type with its range."""
    wanted, (one,) = hint(kind, name), (one for one in fields(kind) if one.name == name)
    if words := choices(kind, name):
        return " | ".join(words)
    inner = get_args(wanted)[0] if get_origin(wanted) is tuple else wanted
    if get_origin(wanted) is tuple:
        said = f"a row of {_ROWS.get(inner, 'values')}"
    else:
        said = _WORDS.get(wanted, getattr(wanted, "__name__", str(wanted)))
    allowed = str(one.metadata.get("range", ""))
    return f"{said}, {allowed}" if allowed else said


def is_required(one: Field[Any]) -> bool:
    """Whether a field has no default."""
    return one.default is MISSING and one.default_factory is MISSING


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


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


class _Unfit(Exception):
    """What a value should have been, and what it is."""


def _all_fitted(kind: type[Any], given: Mapping[str, Any], called: str) -> dict[str, Any]:
    """Values as their fields want them; all that do not fit are told at once."""
    ranges = {one.name: one.metadata.get("range", Range()) for one in fields(kind)}
    fitting, problems = {}, []
    for name, value in given.items():
        try:
            fitting[name] = _fit(_hints(kind)[name], ranges[name], name, value)
        except _Unfit as problem:
            problems.append(f"{name} is {problem}")
    if problems:
        raise WrongSetting(f"{called}: {' '.join(problems)}")
    return fitting


def _fit(wanted: Any, allowed: Range, name: str, value: Any) -> Any:
    """The value as a type wants it."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        others = [choice for choice in inner if choice is not NoneType]
        for choice in others[:-1]:
            try:
                return _fit(choice, allowed, name, value)
            except _Unfit:
                continue
        return _fit(others[-1], allowed, name, value)
    if origin is Literal:
        if not any(value == word and type(value) is type(word) for word in inner):
            raise _Unfit(f"one of {', '.join(map(str, inner))}; got {value!r}.")
        return value
    if origin is tuple:
        return _fit_row(inner, allowed, name, value)
    if wanted in (int, float) and not isinstance(value, bool):  # numpy's numbers, too
        if isinstance(value, Integral):
            value = wanted(value)
        elif wanted is float and isinstance(value, Real):
            value = float(value)
    if wanted is str and isinstance(value, PathLike):
        value = fspath(value)
    if wanted is float and isinstance(value, float) and not math.isfinite(value):
        raise _Unfit(f"a finite number; got {value!r}.")
    if wanted in _WORDS and type(value) is not wanted:
        raise _Unfit(f"{_WORDS[wanted]}; got {value!r}.")
    if isinstance(wanted, type) and not isinstance(value, wanted):
        raise _Unfit(f"of the class {wanted.__name__}; got {value!r}.")
    if wanted in (int, float) and value not in allowed:
        raise _Unfit(f"{allowed}; got {value!r}.")
    return value


def _fit_row(inner: tuple[Any, ...], allowed: Range, name: str, value: Any) -> tuple[Any, ...]:
    items = tuple(value) if isinstance(value, list | tuple) else (value,)
    wanted = inner[:1] * len(items) if inner[-1] is ... else inner
    free = Range()
    try:
        if len(items) != len(wanted):
            raise _Unfit("")
        row = tuple(_fit(kind, free, name, item) for kind, item in zip(wanted, items, strict=True))
    except _Unfit:
        example = ", ".join([str(inner[0](1))] * 2) if inner[0] in (int, float) else "…"
        raise _Unfit(
            f"a row of {'' if inner[-1] is ... else f'{len(inner)} '}"
            f"{_ROWS.get(inner[0], 'values')}, such as {name}=({example}); got {value!r}."
        ) from None
    if not all(item in allowed for item in row if isinstance(item, int | float)):
        raise _Unfit(f"a row of numbers, each {allowed}; got {value!r}.")
    return row
