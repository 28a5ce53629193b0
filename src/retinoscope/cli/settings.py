"""The settings of probes as flags: ``--fourier-bands 17`` sets the field ``bands`` of ``Fourier``.

Probes are imported here without torch, so that ``--help`` can list their flags at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any

from typer import Option

from retinoscope.core.errors import UnknownProbe, WrongInput
from retinoscope.core.settings import WrongSetting, described, hint, make
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
            f.name: unused.pop(key) for f in fields(probe) if (key := f"{name}_{f.name}") in unused
        }
        try:
            made.append(make(probe, given, name))
        except WrongSetting as error:
            raise WrongInput(str(error)) from None
    if unused:
        flag = "--" + next(iter(unused)).replace("_", "-")
        raise UnknownProbe(f"{flag} belongs to a probe that was not asked for. Add its --probe.")
    return made


def settings_table(name: str) -> list[tuple[str, str, str]]:
    """Flag, default and explanation of each setting of a probe."""
    return [
        (f"--{name}-{key}".replace("_", "-"), default, text)
        for key, default, text in described(get_probe(name))
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


def _kind(probe: type, field: str) -> Any:
    """The type of a flag's value; a choice between words is checked by us."""
    wanted = hint(probe, field)
    return wanted if wanted in (int, float, bool) else str
