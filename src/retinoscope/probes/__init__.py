"""One analysis per file; the file's name is the probe's name. No registration is necessary."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from retinoscope.core.catalogue import (
    class_in_file,
    class_of,
    entries,
    is_file_entry,
    name_of,
    source_of,
)
from retinoscope.core.errors import UnknownProbe, UnreadableFile, did_you_mean
from retinoscope.core.settings import make, written
from retinoscope.core.specification import Specification


def list_probes() -> list[str]:
    """The names of all probes.

    Example:
        >>> "fourier" in list_probes()
        True
    """
    return entries(__path__)


def get_probe(name: str) -> type[Any]:
    """The class of a probe, either built in or from a file of your own.

    Args:
        name: A name of :func:`list_probes`, or ``path/file.py:Class``. The file is executed.

    Example:
        >>> get_probe("fourier").__name__
        'Fourier'
    """
    if is_file_entry(name):
        try:
            return class_in_file(name, _is_probe, "probe (see retinoscope.core.probe)")
        except UnreadableFile as error:
            raise UnknownProbe(str(error)) from error.__cause__
    known = list_probes()
    if name not in known:
        raise UnknownProbe(
            f"There is no probe {name!r}. {did_you_mean(name, known)}There are: "
            f"{', '.join(known)}. For a probe of your own: ./file.py:Class"
        )
    return class_of(__name__, name)


def parse_probe(text: str) -> Any:
    """A probe from ``name``, ``name:key=value,key=value`` or ``./file.py:Class:key=value``.

    Example:
        >>> parse_probe("fourier:bands=9").bands
        9
    """
    asked = Specification.parse(text, colons=".py:" in text)
    return make(get_probe(asked.name), asked.options, asked.name)


def write_probe(probe: Any) -> str:
    """The string form of a probe, with only the settings that differ from their defaults.

    Example:
        >>> write_probe(parse_probe("fourier:bands=9,axis=true"))
        'fourier:bands=9'
    """
    kind = type(probe)
    source = source_of(kind)
    return written(probe, f"{source}:{kind.__name__}" if source else name_of(kind))


def _is_probe(kind: type[Any]) -> bool:
    named = all(hasattr(kind, name) for name in ("result", "question", "combine"))
    return is_dataclass(kind) and named
