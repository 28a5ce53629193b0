"""The settings of probes as flags: ``--fourier-bands 17`` sets the field ``bands`` of ``Fourier``.

Probes are imported here without torch, so that ``--help`` can list their flags at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typer import Option

from retinoscope.core.errors import UnknownProbe, WrongInput
from retinoscope.probes import get_probe, list_probes


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for every setting of every probe; it gets them as ``settings``."""
    own = inspect.signature(command, eval_str=True)
    flags = [parameter for name in list_probes() for parameter in _flags(name)]
    names = {parameter.name for parameter in flags}

    @wraps(command)
    def wrapped(**given: Any) -> None:
        settings = {key: given.pop(key) for key in names & given.keys()}
        command(**given, settings={k: v for k, v in settings.items() if v is not None})

    kept = [p for p in own.parameters.values() if p.name != "settings"]
    wrapped.__signature__ = own.replace(parameters=[*kept, *flags])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*kept, *flags]}
    return wrapped


def probes_with(names: list[str] | None, settings: Mapping[str, Any]) -> list[Any]:
    """The probes that were asked for, with their settings; all of them if none was named."""
    chosen = list(dict.fromkeys(names or list_probes()))
    made = []
    unused = dict(settings)
    for name in chosen:
        probe = get_probe(name)
        given = {
            f.name: _checked(name, f.name, unused.pop(key), probe)
            for f in fields(probe)
            if (key := f"{name}_{f.name}") in unused
        }
        try:
            made.append(probe(**given))
        except ValueError as error:
            raise WrongInput(f"{name}: {error}") from None
    if unused:
        flag = "--" + next(iter(unused)).replace("_", "-")
        raise UnknownProbe(f"{flag} belongs to a probe that was not asked for. Add its --probe.")
    return made


def settings_table(name: str) -> list[tuple[str, str, str]]:
    """Flag, default and explanation of each setting of a probe."""
    probe = get_probe(name)
    return [
        (
            f"--{name}-{f.name}".replace("_", "-"),
            "not set" if f.default is None else str(f.default),
            _help(probe, f.name, f.metadata.get("help", "")),
        )
        for f in fields(probe)
    ]


def _flags(name: str) -> list[inspect.Parameter]:
    probe = get_probe(name)
    return [
        inspect.Parameter(
            f"{name}_{f.name}",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _kind(probe, f.name) | None,
                Option(
                    flag,
                    help=f"{text} Default: {default}.",
                    show_default=False,
                    rich_help_panel=f"Settings of the probe {name}",
                ),
            ],
        )
        for f, (flag, default, text) in zip(fields(probe), settings_table(name), strict=True)
    ]


def _hint(probe: type, field: str) -> Any:
    hints = get_type_hints(probe.__init__)
    hint = hints[field]
    choices = [a for a in get_args(hint) if a is not type(None)]
    return choices[0] if type(None) in get_args(hint) and len(choices) == 1 else hint


def _kind(probe: type, field: str) -> Any:
    """The type of a flag's value; a choice between words is checked by us."""
    hint = _hint(probe, field)
    return hint if hint in (int, float, bool) else str


def _help(probe: type, field: str, text: str) -> str:
    hint = _hint(probe, field)
    choices = f" One of: {', '.join(get_args(hint))}." if get_origin(hint) is Literal else ""
    return f"{text}{choices}"


def _checked(name: str, field: str, value: Any, probe: type) -> Any:
    hint = _hint(probe, field)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise WrongInput(f"--{name}-{field} is one of {', '.join(get_args(hint))}; got {value!r}.")
    return value
