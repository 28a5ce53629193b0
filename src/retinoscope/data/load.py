"""Names to images, for the whole tool.

=======================  ==========================================================================
``cues``                 the embedded set: shape and texture predict the class; ``cues:seed=1``
``cifar10, cifar100``    parquet, torchvision's files or class folders under the root; downloaded
``imagenet``             class folders called by WordNet id or name, under ``ROOT/imagenet``
``FOLDER``               class folders, with or without train/val/test above them; or loose photos
``FILE.parquet``         a table with an image column; ``FILE.parquet:image=COLUMN,label=COLUMN``
``hf:NAME``              a dataset of the Hugging Face hub
``FILE.py:FUNCTION``     what a function of your own returns; ``FILE.py:FUNCTION:key=value``
=======================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retinoscope.core.catalogue import is_file_entry, load_file
from retinoscope.core.errors import did_you_mean, first_line
from retinoscope.core.missing import function_in_file
from retinoscope.core.specification import Specification
from retinoscope.data.source import Source, UnknownData, configured_root

NAMES = {
    "cues": "embedded: ten silhouettes and ten textures, made by code at the model's size",
    "cifar10": "ten classes of 32 × 32 px; files under --root or RETINOSCOPE_DATA, or a download",
    "cifar100": "the same with a hundred classes",
    "imagenet": "class folders by WordNet id or name under ROOT/imagenet",
    "FOLDER": "class folders (train/val/test above them if you like), or loose unlabelled photos",
    "FILE.parquet": "an image column and a label column; name them with :image=…,label=…",
    "hf:NAME": "a dataset of the Hugging Face hub or a local folder in its format (extra: hf)",
    "FILE.py:FUNCTION": "a Dataset that a function of your own returns, or several by split",
}


def load_data(
    data: str | Mapping[str, Any] | Any,
    root: Path | str | None = None,
    size: tuple[int, int] = (32, 32),
) -> dict[str, Source]:
    """The splits of ``data`` by name.

    Args:
        data: A name (see the table at the top of this file), a ``Dataset`` of your own, or
            several by the names of their splits.
        root: Where files are looked for; RETINOSCOPE_DATA if not given.
        size: Height and width at which images that are made by code are made.
    """
    if isinstance(data, str):
        asked = Specification.parse(data)
        if not is_file_entry(asked.name):
            return _by_name(asked, _root(root), size)
        data = _from_function(asked)
    from retinoscope.data.dataset import DatasetSource

    given = data if isinstance(data, Mapping) else {"test": data}
    return {
        name: one if isinstance(one, Source) else DatasetSource(one) for name, one in given.items()
    }


def check_data(data: str, root: Path | str | None = None) -> None:
    """Refuse data that do not exist, before anything is imported or loaded that takes long.

    Nothing is read, run or downloaded: only names, options, files and folders are looked at.
    """
    asked = Specification.parse(data)
    if is_file_entry(asked.name):
        function_in_file(asked.name, UnknownData)
        return
    base, name = _root(root), asked.name
    known = {"cues": "seed", "cifar10": "", "cifar100": ""}.get(name, "image label")
    _only(dict(asked.options), known, asked)
    if not name.startswith("hf:") and name not in ("cues", "cifar10", "cifar100"):
        _path(name, base)


def _by_name(asked: Specification, root: Path | None, size: tuple[int, int]) -> dict[str, Source]:
    name, options = asked.name, dict(asked.options)
    if name == "cues":
        from retinoscope.data.cues import SPLITS, Cues

        seed = _only(options, "seed", asked).get("seed", 0)
        splits: dict[str, Source] = {split: Cues(split, size, seed) for split in SPLITS}
        return splits
    if name in ("cifar10", "cifar100"):
        from retinoscope.data.cifar import find_cifar

        _only(options, "", asked)
        return find_cifar(name, root)
    columns = {key: str(value) for key, value in _only(options, "image label", asked).items()}
    if name.startswith("hf:"):
        from retinoscope.data.hub import find_hub

        return find_hub(name.removeprefix("hf:"), **columns)
    return _from_path(_path(name, root), columns)


def _from_function(asked: Specification) -> Any:
    """What a function in a file of the user's own returns; this runs the file."""
    file, wanted = function_in_file(asked.name, UnknownData)
    module = load_file(file)
    function = getattr(module, wanted, None)
    if not callable(function):
        named = vars(module).items()
        own = [n for n, f in named if getattr(f, "__module__", "") == module.__name__]
        raise UnknownData(
            f"{str(file)!r} has no function {wanted!r}. {did_you_mean(wanted, own)}"
            f"It has: {', '.join(own) or 'none'}."
        )
    try:
        return function(**asked.options)
    except Exception as error:
        raise UnknownData(
            f"{asked.name} fails: {type(error).__name__}: {first_line(error)}"
        ) from error


def _path(name: str, root: Path | None) -> Path:
    """The file or folder that is meant: as it stands, or under the root."""
    for path in (Path(name).expanduser(), *([root / name] if root else [])):
        if path.exists():
            return path
    looked = f" Looked in the current folder and in {str(root)!r}." if root else ""
    raise UnknownData(
        f"There are no data {name!r}. {did_you_mean(name, list(NAMES))}{looked} Known forms: "
        f"{', '.join(NAMES)}. Say where files lie with --root FOLDER (in Python root=…) or "
        "RETINOSCOPE_DATA."
    )


def _from_path(path: Path, columns: dict[str, str]) -> dict[str, Source]:
    from retinoscope.data import folder, parquet

    tables = path.is_dir() and next(path.rglob("*.parquet"), None) is not None
    if path.suffix == ".parquet" or (tables and not folder.is_image_folder(path)):
        return parquet.find_splits(path, **columns)
    if columns:
        raise UnknownData(f"{str(path)!r} is no table, so it has no columns to choose.")
    return folder.find_splits(path)


def _root(root: Path | str | None) -> Path | None:
    given = root or configured_root()
    if given is None:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise UnknownData(f"The root {str(path)!r} is not a folder.")
    return path


def _only(options: dict[str, Any], known: str, asked: Specification) -> dict[str, Any]:
    if unknown := set(options) - set(known.split()):
        raise UnknownData(
            f"{str(asked)!r}: {asked.name} has no option {', '.join(sorted(unknown))}. "
            f"It has: {', '.join(known.split()) or 'none'}."
        )
    return options
