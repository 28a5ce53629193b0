"""Image folders, with or without class folders and splits, and single image files."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from retinoscope.core.errors import UnreadableFile, first_line
from retinoscope.data.decode import decode
from retinoscope.data.source import Source, UnknownData

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
_HELD_OUT = ("val", "validation", "valid", "eval")
SPLITS = ("train", "test", *_HELD_OUT)
_UNDERSTOOD = (
    "Give an image file, a folder of images, a folder with one folder of images per "
    f"class, and one with such folders inside {', '.join(SPLITS)}. Images end in "
    f"{' '.join(sorted(SUFFIXES))}."
)
_LISTED = 5


class FolderSource:
    """Image files under one folder, in the order given."""

    def __init__(
        self,
        root: Path,
        files: Sequence[str],
        classes: tuple[str, ...] | None = None,
        labels: Sequence[int] | None = None,
    ) -> None:
        self.root = root
        self.files = tuple(files)
        """Paths relative to ``root``."""
        self.classes = classes
        self.labels = None if labels is None else np.array(labels, dtype=np.int64)
        self.attributes: Mapping[str, np.ndarray] = {}
        digest = hashlib.sha256(repr((classes, labels and list(labels))).encode())
        for file in self.files:
            # Not every file name is valid text; fsencode accepts all of them.
            digest.update(os.fsencode(f"{file}\0{_size(root / file)}\0"))
        self.fingerprint = digest.hexdigest()[:12]

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """The image's path inside the folder."""
        return self.files[index]

    def digest(self, index: int) -> bytes:
        """A hash of the file's bytes: a replaced file may have the same name and size."""
        try:
            with (self.root / self.files[index]).open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError:
            return b"unreadable"

    def read(self, index: int) -> np.ndarray:
        """The image as RGB, uint8 (H, W, 3)."""
        return decode(self.root / self.files[index], self.files[index])


def find_splits(root: Path) -> dict[str, Source]:
    """The images in a folder, by split; without split folders all of them are ``test``.

    Classes are the visible folders inside ``root`` or inside its splits, sorted by name, including
    empty ones; a class may have subfolders. All splits have the same classes. Hidden files and
    files other than images, such as lists of class names, are ignored.

    Args:
        root: A folder, or one image.

    Raises:
        UnknownData: There are no images, or the layout of the folders is ambiguous.
    """
    if root.is_file() and _is_image(root.name):
        return {"test": FolderSource(root.parent, [root.name])}
    if not root.is_dir():
        what = "is a file, but no image" if root.exists() else "does not exist"
        raise UnknownData(f"{str(root)!r} {what}. {_UNDERSTOOD}")
    holding = [folder for folder in _folders(root) if is_image_folder(root / folder)]
    if not holding and not _loose(root):
        raise UnknownData(f"{str(root)!r} holds no images but {_census(root)}. {_UNDERSTOOD}")
    splits = _split_folders(root, holding)
    if not splits:
        return {"test": _source(root, "", _classes(root))}
    if loose := _loose(root):
        raise _mixed(root, loose, splits)
    found = {folder: _classes(root / folder) for folder in splits}
    # A class without a folder in one split must not shift the labels of the other classes.
    union = tuple(sorted({name for classes in found.values() if classes for name in classes}))
    called = name_splits(splits)
    return {
        called[folder]: _source(root, folder, classes and union)
        for folder, classes in found.items()
    }


def is_image_folder(path: Path) -> bool:
    """Whether ``path`` is a folder that contains an image, at any depth."""
    return any(_is_image(file) for file in _walk(path))


def name_splits(found: Iterable[str]) -> dict[str, str]:
    """The name of each split; a validation split is called ``test`` if there is no test split.

    Example:
        >>> name_splits(["train", "validation"])
        {'train': 'train', 'validation': 'test'}
        >>> name_splits(["Test", "valid"])
        {'Test': 'test', 'valid': 'val'}
    """
    called = {name: name.lower() for name in found}
    twice = [name for name, count in Counter(called.values()).items() if count > 1]
    if twice:
        same = [name for name, lower in called.items() if lower == twice[0]]
        raise UnknownData(
            f"The splits {' and '.join(map(repr, same))} differ in case only. Rename one of them."
        )
    held_out = [name for split in _HELD_OUT for name in called if called[name] == split]
    if held_out:
        called[held_out[0]] = "val" if "test" in called.values() else "test"
    return called


def _source(root: Path, folder: str, classes: tuple[str, ...] | None) -> FolderSource:
    """The images of ``folder`` inside ``root``; without classes they have no labels."""
    inside = os.path.join(folder, "")
    if classes is None:
        return FolderSource(root, [f"{inside}{file}" for file in _loose(root / folder)])
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        place = root / folder / name
        # This split may lack a class that another split has.
        here = [file for file in _walk(place) if _is_image(file)] if place.is_dir() else []
        files += [os.path.join(folder, name, file) for file in sorted(here)]
        labels += [label] * len(here)
    return FolderSource(root, files, classes, labels)


def _classes(folder: Path) -> tuple[str, ...] | None:
    """The class folders in ``folder``; None if none of them contains images."""
    folders = _folders(folder)
    holding = [name for name in folders if is_image_folder(folder / name)]
    loose = _loose(folder)
    if loose and holding:
        raise _mixed(folder, loose, holding)
    return tuple(folders) if holding else None


def _split_folders(root: Path, holding: Sequence[str]) -> list[str]:
    """The folders that are splits; empty if all of them are classes."""
    splits = [folder for folder in holding if folder.lower() in SPLITS]
    others = [folder for folder in holding if folder.lower() not in SPLITS]
    if others and [split.lower() for split in splits] == ["train"]:
        return []  # a class of trains, next to other classes
    if others and splits:
        raise UnknownData(
            f"{str(root)!r} holds the splits {_listed(splits)}, but also images in "
            f"{_listed(others)}: are these classes or splits? Name one of the folders instead, or "
            "move the others away."
        )
    return splits


def _mixed(folder: Path, loose: Sequence[str], holding: Sequence[str]) -> UnknownData:
    return UnknownData(
        f"{str(folder)!r} holds images both in folders ({_listed(holding)}) and loose "
        f"({_listed(loose)}). Move the loose ones away or into a folder."
    )


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _census(root: Path) -> str:
    kinds = Counter(Path(file).suffix or "no suffix" for file in _walk(root))
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_LISTED))
    return f"{kinds.total()} other files ({counted})" if kinds else "no other files either"


def _is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in SUFFIXES


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # added to zip files by macOS


def _loose(folder: Path) -> list[str]:
    """The images directly in a folder, sorted."""
    entries = [name for name in _entries(folder) if _is_image(name)]
    return [name for name in entries if not (folder / name).is_dir()]


def _folders(folder: Path) -> list[str]:
    """The visible folders directly in a folder, sorted."""
    return [name for name in _entries(folder) if (folder / name).is_dir()]


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not _is_hidden(name))
    except OSError as error:
        raise _unlistable(error) from None


def _walk(folder: Path) -> Iterator[str]:
    """The paths of all visible files in a folder, at any depth; links are followed."""
    seen: set[str] = set()
    for base, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(base)
        if real in seen:  # a link to a folder that was visited before
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not _is_hidden(name)]
        inside = os.path.relpath(base, folder)
        for name in files:
            if not _is_hidden(name):
                yield os.path.normpath(os.path.join(inside, name))


def _refuse(error: OSError) -> None:
    """Raise for a folder that cannot be listed, which ``os.walk`` would skip."""
    raise _unlistable(error)


def _unlistable(error: OSError) -> UnreadableFile:
    return UnreadableFile(f"The folder {error.filename!r} cannot be listed: {first_line(error)}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1  # a broken link: reading it will report that
