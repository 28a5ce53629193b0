"""Rooms in which a file is an entry: its name is the entry's, its class is called like it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any


def entries(path: Iterable[str], without: Iterable[str] = ()) -> list[str]:
    """The names of a room's files, but for those that are its tools."""
    tools = set(without)
    return sorted(found.name for found in pkgutil.iter_modules(path) if found.name not in tools)


def class_of(room: str, name: str) -> type[Any]:
    """The class that is called like its file: ``effective_rank.py`` holds ``EffectiveRank``."""
    module: ModuleType = import_module(f"{room}.{name}")
    return getattr(module, "".join(word.capitalize() for word in name.split("_")))


def name_of(entry: Any) -> str:
    """The name of the file that an entry, or an instance of it, lives in."""
    kind = entry if isinstance(entry, type) else type(entry)
    return kind.__module__.rpartition(".")[2]
