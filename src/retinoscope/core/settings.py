"""The fields of a frozen dataclass as settings that users write: types, choices, ranges, errors.

A field made by :func:`setting` carries its description and its range. :func:`check`, called in
``__post_init__``, raises an error for invalid values, whether they come from Python or a string.
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
"""The default of a setting without a default."""
MAX_SEED = 2**32 - 1
RENAMED = {
    "towards": "target",
    "and_towards": "second_target",
    "reach": "radius",
    "at_most": "max_images",
}
"""Former names of settings, and their names today."""
_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "text"}
_ROWS = {int: "integers", float: "numbers", bool: "True or False", str: "texts"}


class WrongSetting(WrongInput):
    """A setting does not exist, is missing, has the wrong type, or is out of range."""


@dataclass(frozen=True)
class Range:
    """The range of valid numbers of a setting.

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
    """A field of a dataclass with its default, its description and its range.

    Args:
        default: ``REQUIRED`` if there is none.
        text: Its description, for users who have not read the code.
        at_least: The smallest valid number; for a tuple, of each element.
        at_most: The largest valid number.
        above: It must be larger than this.
        below: It must be smaller than this.
        example: A value to show; for a required setting, a valid one.
        flag: The name of the command-line flag, if it differs from the field's name.
        group: The heading of the flag in ``--help``.
    """
    allowed = Range(at_least, at_most, above, below)
    told = {"help": text, "range": allowed, "example": example, "flag": flag, "group": group}
    return field(default=default, metadata=told)


class Described(NamedTuple):
    """A setting in words, for help texts."""

    name: str
    values: str
    """The valid values."""
    default: str
    text: str
    """The description."""


def make(kind: type[Any], given: Mapping[str, Any], called: str) -> Any:
    """Create an instance of a dataclass from settings by name; checks every name and value.

    Args:
        kind: The dataclass.
        given: Its settings; integers are valid for float fields.
        called: Its name in error messages.
    """
    known = {one.name: one for one in fields(kind) if one.init}
    for name in given:
        if name not in known:
            now = RENAMED.get(name)
            hint = f"It is now called {now}: {called}:{now}={given[name]}. " if now in known else ""
            raise WrongSetting(
                f"{called} has no setting {name!r}. {hint or did_you_mean(name, list(known))}Its "
                f"settings: {', '.join(known) or 'none'}."
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
    """Check and convert the fields of a frozen instance; for use in ``__post_init__``."""
    given = {one.name: getattr(instance, one.name) for one in fields(instance)}
    for name, value in _all_fitted(type(instance), given, called).items():
        object.__setattr__(instance, name, value)


def refuse(called: str, *rules: tuple[str, bool]) -> None:
    """Raise if a rule between several settings is violated; for use in ``__post_init__``.

    Args:
        called: The name of the instance in error messages.
        rules: The text of each rule, and whether it holds.
    """
    if broken := [text for text, holds in rules if not holds]:
        raise WrongSetting(f"{called}: {'; '.join(broken)}.")


def fitted(kind: type[Any], name: str, value: Any, called: str) -> Any:
    """The value converted to the field's type; raises if it has another type or is out of range."""
    return _all_fitted(kind, {name: value}, called)[name]


def written(instance: Any, name: str) -> str:
    """``name:key=value,…`` with the settings that differ from their defaults."""
    changed = {
        one.name: value
        for one in fields(instance)
        if (value := getattr(instance, one.name)) != _default(one) or is_required(one)
    }
    return str(Specification(name, changed))


def example(kind: type[Any], name: str, most: int = 2) -> str:
    """An example ``name:key=value,…``: the required settings, or else the first with a value."""
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
    """The valid values of a setting in words: its choices, or its type with its range."""
    wanted, (one,) = hint(kind, name), (one for one in fields(kind) if one.name == name)
    if words := choices(kind, name):
        return " | ".join(words)
    inner = get_args(wanted)[0] if get_origin(wanted) is tuple else wanted
    if get_origin(wanted) is tuple:
        said = f"a tuple of {_ROWS.get(inner, 'values')}"
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
    """The type of a field, without ``| None`` if that is one of two alternatives."""
    found = _hints(kind)[name]
    if get_origin(found) in (Union, UnionType):
        others = [choice for choice in get_args(found) if choice is not NoneType]
        return others[0] if len(others) == 1 else found
    return found


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """The resolved annotations, cached."""
    return get_type_hints(kind.__init__)


def choices(kind: type[Any], name: str) -> tuple[str, ...]:
    """The valid words of a field; empty if it is not a choice between words."""
    found = hint(kind, name)
    return get_args(found) if get_origin(found) is Literal else ()


class _Unfit(Exception):
    """A value that does not fit: the expected form, and the value."""


def _all_fitted(kind: type[Any], given: Mapping[str, Any], called: str) -> dict[str, Any]:
    """Values converted to the types of their fields; all invalid values are reported at once."""
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
    """The value converted to a type."""
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
    if wanted in (int, float) and not isinstance(value, bool):  # also accepts numpy numbers
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
        raise _Unfit(f"an instance of {wanted.__name__}; got {value!r}.")
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
            "a tuple of "
            f"{'' if inner[-1] is ... else f'{len(inner)} '}{_ROWS.get(inner[0], 'values')}, such "
            f"as {name}=({example}); got {value!r}."
        ) from None
    if not all(item in allowed for item in row if isinstance(item, int | float)):
        raise _Unfit(f"a tuple of numbers, each {allowed}; got {value!r}.")
    return row
