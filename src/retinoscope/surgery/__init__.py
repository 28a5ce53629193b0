"""One surgery per file; the file's name is the surgery's name. No registration is necessary."""

from __future__ import annotations

from typing import Any

from retinoscope.core.catalogue import class_of, entries, name_of
from retinoscope.core.errors import UnknownSurgery, did_you_mean
from retinoscope.core.settings import WrongSetting, make, written
from retinoscope.core.specification import Specification
from retinoscope.core.surgery import Surgery

_TOOLS = ("calls", "graft", "operate", "table")


def list_surgeries() -> list[str]:
    """The names of all surgeries.

    Example:
        >>> "context_broadcasting" in list_surgeries()
        True
    """
    return entries(__path__, _TOOLS)


def get_surgery(name: str) -> type[Any]:
    """The class of a surgery.

    Example:
        >>> get_surgery("mc_dropout").__name__
        'McDropout'
    """
    known = list_surgeries()
    if name not in known:
        raise UnknownSurgery(
            f"There is no surgery {name!r}. {did_you_mean(name, known)}"
            f"There are: {', '.join(known)}."
        )
    return class_of(__name__, name)


def parse_surgery(text: str) -> Surgery:
    """A surgery from ``name:key=value,key=value``.

    Example:
        >>> parse_surgery("mc_dropout:p=0.1")
        McDropout(p=0.1, always=True)
    """
    asked = Specification.parse(text, colons=False)
    kind = get_surgery(asked.name)
    try:
        return make(kind, asked.options, asked.name)
    except WrongSetting as error:
        raise UnknownSurgery(str(error)) from None


def write_surgery(surgery: Surgery) -> str:
    """The string form of a surgery, with only the settings that differ from their defaults.

    Example:
        >>> write_surgery(parse_surgery("mc_dropout:p=0.1,always=True"))
        'mc_dropout:p=0.1'
    """
    return written(surgery, name_of(surgery))
