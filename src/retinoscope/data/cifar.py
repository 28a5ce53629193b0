"""CIFAR-10 and CIFAR-100 from torchvision's files, Parquet tables or class folders."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retinoscope.core.errors import UnreadableFile, first_line
from retinoscope.data import folder, parquet
from retinoscope.data.source import Source, UnknownData, configured_root

_HOME = Path("~/.cache/retinoscope/data")


@dataclass(frozen=True)
class _Set:
    """How torchvision stores one of the two datasets."""

    folder: str
    batches: Mapping[str, tuple[str, ...]]
    meta: str
    label: str
    names: str
    classes: int
    downloader: str


_SETS = {
    "cifar10": _Set(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)},
        "batches.meta",
        "labels",
        "label_names",
        10,
        "CIFAR10",
    ),
    "cifar100": _Set(
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        "meta",
        "fine_labels",
        "fine_label_names",
        100,
        "CIFAR100",
    ),
}


class CifarSource:
    """One split of torchvision's files, in memory."""

    def __init__(self, paths: Sequence[Path], label: str, classes: Sequence[str]) -> None:
        self._names = [path.name for path in paths]
        batches = [_read_batch(path, label, len(classes)) for path in paths]
        self._starts = np.cumsum([0, *(len(labels) for _, labels in batches)])
        self._pixels = np.concatenate([pixels for pixels, _ in batches])
        labels = np.concatenate([labels for _, labels in batches])
        self.labels: np.ndarray | None = labels
        self.classes: tuple[str, ...] | None = tuple(classes)
        self.attributes: Mapping[str, np.ndarray] = {}
        digest = hashlib.sha256(repr(self.classes).encode())
        digest.update(labels.tobytes())
        digest.update(self._pixels.tobytes())
        self.fingerprint = digest.hexdigest()[:12]

    def __len__(self) -> int:
        return len(self._pixels)

    def name(self, index: int) -> str:
        """The file and the row in it."""
        file = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{self._names[file]} row {index - self._starts[file]}"

    def digest(self, index: int) -> bytes:
        """Empty: the fingerprint covers the files."""
        return b""

    def read(self, index: int) -> np.ndarray:
        """The image as RGB, uint8 (32, 32, 3)."""
        # All red values are stored first, then all green, then all blue ones.
        return np.ascontiguousarray(self._pixels[index].reshape(3, 32, 32).transpose(1, 2, 0))


def find_cifar(
    name: Literal["cifar10", "cifar100"], root: Path | None, download: bool = True
) -> dict[str, Source]:
    """The splits of CIFAR-10 or CIFAR-100.

    Looks for torchvision's files, Parquet tables and class folders. If none is found, torchvision's
    files are downloaded.

    Args:
        name: The dataset.
        root: Folder to look in. Default: ``RETINOSCOPE_DATA``, or a cache in the user's home.
        download: Whether to download the dataset if it is not found.

    Raises:
        UnknownData: It was not found, nor downloaded.
        UnreadableFile: It is damaged, or another dataset was found in its place.
    """
    place = (root or Path(configured_root() or _HOME)).expanduser()
    splits = _look(name, place)
    reason = "Downloads were not asked for."
    if not splits and download:
        try:
            _download(name, place / name)
        except Exception as error:  # network, disk or archive
            reason = f"Downloading it failed: {first_line(error)}"
        splits = _look(name, place)
    if splits:
        return splits
    stored = _SETS[name].folder
    raise UnknownData(
        f"{name} was not found. Looked for torchvision's files ({place / stored}, "
        f"{place / name / stored}), Parquet tables ({place / name}/**/*.parquet, "
        f"{place}/{{train,test}}*.parquet) and class folders ({place / name}/train/CLASS). "
        f"{reason} Say where it lies with --root FOLDER (in Python root=…) or RETINOSCOPE_DATA."
    )


def _look(name: str, place: Path) -> dict[str, Source]:
    """The splits in the first form that is found, the most reliable first; empty if none is."""
    known = _SETS[name]
    own = place / name
    for stored in (place / known.folder, own / known.folder):
        if stored.is_dir():
            return _read_stored(known, stored)
    loose = [file for split in ("train", "test") for file in place.glob(f"{split}*.parquet")]
    if own.is_dir() and next(own.rglob("*.parquet"), None):
        splits = parquet.find_splits(own)
    elif loose:
        splits = parquet.split_tables(loose, place)
    elif own.is_dir() and folder.is_image_folder(own):
        splits = folder.find_splits(own)
    else:
        return {}
    for split, source in splits.items():
        count = len(source.classes or ())
        if count != known.classes:
            raise UnreadableFile(
                f"The {split} split found for {name} in {str(place)!r} has {count} classes, not "
                f"{known.classes}: it is another set, or a part. Say where it lies with "
                "--root FOLDER (in Python root=…)."
            )
    return splits


def _read_stored(known: _Set, stored: Path) -> dict[str, Source]:
    meta = _read_pickle(stored / known.meta)
    classes = meta.get(known.names)
    if not isinstance(classes, list) or len(classes) != known.classes:
        raise UnreadableFile(
            f"{str(stored / known.meta)!r} does not hold {known.classes} {known.names}."
        )
    names = [str(name) for name in classes]
    return {
        split: CifarSource([stored / batch for batch in batches], known.label, names)
        for split, batches in known.batches.items()
    }


def _read_batch(path: Path, label: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels (N, 3072) and labels (N,) in one file."""
    batch = _read_pickle(path)
    data, labels = batch.get("data"), batch.get(label)
    pixels = data.values if isinstance(data, _StoredArray) else None
    if (
        pixels is None
        or not isinstance(labels, list)
        or pixels.shape != (len(labels), 3 * 32 * 32)
        or not all(type(number) is int and 0 <= number < classes for number in labels)
    ):
        raise UnreadableFile(
            f"{str(path)!r} is not a batch of CIFAR: expected are data, one row of 3072 bytes per "
            f"image, and {label} from 0 to {classes - 1}. It holds {', '.join(map(str, batch))}."
        )
    return pixels, np.array(labels, dtype=np.int64)


def _read_pickle(path: Path) -> dict[str, Any]:
    try:
        # Written by Python 2, where strings are bytes.
        found = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except Exception as error:  # damaged pickles can raise nearly any exception
        raise UnreadableFile(
            f"{str(path)!r} cannot be read as a file of CIFAR: {first_line(error)}"
        ) from None
    if not isinstance(found, dict):
        raise UnreadableFile(f"{str(path)!r} is not a file of CIFAR: {type(found).__name__}.")
    return found


class _ArraysOnly(pickle.Unpickler):
    """Reads numbers, text, lists, mappings and byte arrays, and runs no code that a file names.

    It does not run numpy's own code for arrays either, which trusts its input.
    """

    def find_class(self, module: str, name: str) -> Any:
        stands_in = {
            "numpy.core.multiarray._reconstruct": _begin_array,
            "numpy._core.multiarray._reconstruct": _begin_array,
            "numpy.ndarray": _StoredArray,
            "numpy.dtype": _StoredKind,
            "_codecs.encode": _encode,
        }
        wanted = f"{module}.{name}"
        if wanted not in stands_in:
            raise pickle.UnpicklingError(f"it wants to run {wanted}, which was refused.")
        return stands_in[wanted]


class _StoredKind:
    """Stand-in for numpy's dtype of bytes; other dtypes are refused."""

    def __init__(self, code: str, *options: bool) -> None:
        if code != "u1":
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, not of bytes.")

    def __setstate__(self, state: object) -> None:
        """Ignore the state: bytes have neither byte order nor fields."""


class _StoredArray:
    """Stand-in for a byte array until the whole file has been read."""

    values: np.ndarray | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, bytes | str]) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _StoredKind):
            raise pickle.UnpicklingError("it holds an array of an unknown kind.")
        # Bytes written by Python 2 are loaded as text.
        data = content.encode("latin1") if isinstance(content, str) else content
        order = "F" if columns_first else "C"
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order=order)


def _begin_array(kind: object, shape: object, code: object) -> _StoredArray:
    """An empty array, which pickle fills afterwards."""
    return _StoredArray()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds text in {encoding!r}.")
    return text.encode("latin1")


def _download(name: str, place: Path) -> None:
    """Download and unpack torchvision's files; torchvision verifies their checksum."""
    # Without torchvision's Dataset, which would unpickle the download without restrictions.
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    known = getattr(datasets, _SETS[name].downloader)
    place.mkdir(parents=True, exist_ok=True)
    download_and_extract_archive(
        known.url, str(place), filename=known.filename, md5=known.tgz_md5, remove_finished=True
    )
