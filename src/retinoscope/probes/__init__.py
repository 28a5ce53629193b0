"""One analysis per file; the file's name is the probe's name. Nothing needs to be registered."""

from __future__ import annotations

from typing import Any

from retinoscope.core.catalogue import class_of, entries
from retinoscope.core.errors import UnknownProbe, did_you_mean


def list_probes() -> list[str]:
    """The names of all probes.

    Example:
        >>> "fourier" in list_probes()
        True
    """
    return entries(__path__)


def get_probe(name: str) -> type[Any]:
    """The class of a probe: the one that is called like its file.

    Example:
        >>> get_probe("fourier").__name__
        'Fourier'
    """
    known = list_probes()
    if name not in known:
        raise UnknownProbe(
            f"There is no probe {name!r}. {did_you_mean(name, known)}There are: {', '.join(known)}."
        )
    return class_of(__name__, name)
