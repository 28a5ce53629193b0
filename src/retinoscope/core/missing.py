"""Refuses files that do not exist, in the same words before torch is imported and after."""

from __future__ import annotations

from pathlib import Path

from retinoscope.core.errors import RetinoscopeError, UnknownModel, UnreadableFile


def check_weights_file(path: str | Path) -> None:
    """Refuse a file of weights that does not exist."""
    if not Path(path).is_file():
        raise UnreadableFile(
            f"There is no file {str(path)!r} to read weights from. Name a .safetensors or .pth "
            "file with --weights (in Python weights=…)."
        )


def check_built_file(path: str | Path) -> None:
    """Refuse a file of a built or trained model that does not exist."""
    if not Path(path).is_file():
        raise UnknownModel(
            f"There is no file {str(path)!r} to build a model from. Make one with: retinoscope "
            "build MODEL --apply SURGERY --out FILE.safetensors"
        )


def function_in_file(name: str, error: type[RetinoscopeError]) -> tuple[Path, str]:
    """The file and the function of ``path/file.py:function``; the file exists.

    Args:
        name: The name as the user wrote it.
        error: The type of the error for a name without a function or without a file.

    Example:
        >>> _, function = function_in_file(f"{__file__}:check_built_file", UnknownModel)
        >>> function
        'check_built_file'
    """
    file, _, function = name.rpartition(":")
    if not file or not function or function.endswith(".py"):
        raise error(f"{name!r} names a file but no function. Write it as path/file.py:function")
    path = Path(file).expanduser()
    if not path.is_file():
        raise error(
            f"There is no file {file!r} to take {function!r} from. Write path/file.py:function "
            "with the path of an existing file."
        )
    return path, function
