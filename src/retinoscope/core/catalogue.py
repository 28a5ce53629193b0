"""Packages in which every file is one entry: the class in it has the same name as the file.

A user's file can also be an entry: ``./effective_rank.py:EffectiveRank``.
"""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from retinoscope.core.errors import UnreadableFile, did_you_mean, first_line

_PREFIX = "retinoscope_file_"


def entries(path: Iterable[str], without: Iterable[str] = ()) -> list[str]:
    """The names of a package's entries: its files, except private helpers."""
    tools = set(without)
    return sorted(found.name for found in pkgutil.iter_modules(path) if found.name not in tools)


def class_of(room: str, name: str) -> type[Any]:
    """The class with the same name as its file: ``EffectiveRank`` in ``effective_rank.py``."""
    return getattr(import_module(f"{room}.{name}"), _camel_case(name))


def name_of(entry: Any) -> str:
    """The name of the file that defines an entry, given the class or an instance."""
    kind = entry if isinstance(entry, type) else type(entry)
    source = source_of(kind)
    return kind.__module__.rpartition(".")[2] if source is None else source.stem


def is_file_entry(name: str) -> bool:
    """Whether a name refers to a class in a user's file.

    Example:
        >>> is_file_entry("./rank.py:Rank"), is_file_entry("rank.py"), is_file_entry("hessian")
        (True, True, False)
    """
    return ".py:" in name or name.endswith(".py")


def class_in_file(name: str, fits: Callable[[type[Any]], bool], what: str) -> type[Any]:
    """The class that ``path/file.py:Class`` refers to.

    Without ``:Class``, it is the class with the same name as the file, or the only suitable one.

    Args:
        name: The path, with or without the class.
        fits: Whether a class is of the requested kind.
        what: The name of that kind, for error messages.
    """
    file, _, wanted = (name, "", "") if name.endswith(".py") else name.rpartition(":")
    module = load_file(file)
    own = {n: kind for n, kind in vars(module).items() if inspect.isclass(kind)
           and kind.__module__ == module.__name__}  # fmt: skip
    fitting = [n for n, kind in own.items() if fits(kind)]
    if not wanted:
        alike = _camel_case(Path(file).stem)
        wanted = alike if alike in fitting else fitting[0] if len(fitting) == 1 else ""
    if not wanted:
        raise UnreadableFile(
            f"{name!r} names a file but no class. Write it as {file}:Class. It contains: "
            f"{', '.join(fitting) or f'no {what}'}."
        )
    if wanted not in own:
        raise UnreadableFile(
            f"{file!r} has no class {wanted!r}. {did_you_mean(wanted, list(own))}It contains: "
            f"{', '.join(fitting or own) or 'no class'}."
        )
    if wanted not in fitting:
        raise UnreadableFile(f"{wanted} in {file!r} is not a {what}.")
    return own[wanted]


def load_file(path: Path | str) -> ModuleType:
    """Import a user's Python file as a module; it is executed once per content and process.

    The module is registered in ``sys.modules`` under a name that depends only on path and content.
    Another process that has loaded the same file can therefore unpickle instances of its classes,
    and a changed file is executed again. The file can import modules from its own folder.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UnreadableFile(
            f"There is no file {str(path)!r}. Write path/file.py:NAME with the path of an existing "
            "file."
        )
    content = file.read_bytes()
    digits = hashlib.sha256(str(file).encode() + content).hexdigest()[:8]
    name = f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{digits}"
    if name in sys.modules:
        return sys.modules[name]
    specification = spec_from_file_location(name, file)
    if specification is None:
        raise UnreadableFile(f"{str(path)!r} is not a Python file.")
    # Register it before executing it: dataclasses look up their annotations there.
    module = sys.modules[name] = module_from_spec(specification)
    sys.path.insert(0, str(file.parent))
    try:
        exec(compile(content, file, "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise UnreadableFile(
            f"{str(path)!r} fails: {type(error).__name__}: {first_line(error)} Fix this line: "
            f"{_line(error)}"
        ) from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def source_of(kind: type[Any]) -> Path | None:
    """The user's file that a class was loaded from; None if it belongs to an installed module."""
    if not kind.__module__.startswith(_PREFIX):
        return None
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return None if file is None else Path(file)


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _line(error: Exception) -> str:
    """The location in the user's code that failed."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
