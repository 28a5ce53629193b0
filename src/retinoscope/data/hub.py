"""Datasets that the Hugging Face package ``datasets`` can load, by name on the hub or by folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retinoscope.core.errors import UnreadableFile, first_line
from retinoscope.data.columns import check_labels, choose_image, choose_label
from retinoscope.data.decode import decode_stored
from retinoscope.data.folder import name_splits
from retinoscope.data.source import Source, UnknownData, UnreadableImage

_SAMPLED = 64


class HubSource:
    """One split loaded by the package ``datasets``, which does not decode the images; we do.

    Args:
        split: The split, a ``datasets.Dataset``.
        called: Name of the split for messages.
        image: The image column.
        labels: One label per row, negative if missing; None if there are no labels.
        classes: The class names.
    """

    def __init__(
        self,
        split: Any,
        called: str,
        image: str,
        labels: np.ndarray | None,
        classes: tuple[str, ...] | None,
    ) -> None:
        from datasets import Image

        self._called, self._image = called, image
        self._images = split.select_columns([image]).cast_column(image, Image(decode=False))
        self.attributes: Mapping[str, np.ndarray] = {}
        absent = labels is None or bool((labels < 0).all())
        self.labels = None if absent else labels
        self.classes = None if absent else classes
        if self.labels is not None and self.labels.min() < 0:
            row = int(np.argmin(self.labels))
            raise UnreadableFile(f"{self.name(row)} has no label, but others have.")
        self.fingerprint = self._hash(split)

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        """The split and the row in it."""
        return f"{self._called} row {index}"

    def digest(self, index: int) -> bytes:
        """Empty: the fingerprint covers the files."""
        return b""

    def read(self, index: int) -> np.ndarray:
        """The image as RGB, uint8 (H, W, 3)."""
        return decode_stored(self._cell(index), Path(), self.name(index))

    def _cell(self, index: int) -> Any:
        try:
            return self._images[index][self._image]
        except Exception as error:
            raise UnreadableImage(
                f"{self.name(index)} cannot be read: {first_line(error)}"
            ) from None

    def _hash(self, split: Any) -> str:
        """A hash of labels, some images and the names of files on the hub, which hold a revision.

        The package's own fingerprint is not used: it depends on when files were written.
        """
        files = sorted(f for f in (split.info.download_checksums or {}) if f.startswith("hf://"))
        digest = hashlib.sha256(repr((files, len(self), self.classes)).encode())
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        for index in np.linspace(0, len(self) - 1, min(_SAMPLED, len(self))).astype(int).tolist():
            cell = self._images[index][self._image] or {}
            # Only the name: the rest of the path is where the file was unpacked on this machine.
            digest.update(cell.get("bytes") or Path(str(cell.get("path"))).name.encode())
        return digest.hexdigest()[:12]


def find_hub(name: str, image: str | None = None, label: str | None = None) -> dict[str, Source]:
    """The splits of a dataset on the Hugging Face hub, or of a local folder in its format.

    Args:
        name: The name of the dataset, or the path of a folder.
        image: The image column, if there are several.
        label: The label column, if there are several.

    Raises:
        UnknownData: The package is not installed, there is no such dataset or no network, or the
            choice of columns is ambiguous.
    """
    try:
        import datasets
    except ImportError:
        raise UnknownData(
            f"hf:{name} needs the package datasets. Install it with: pip install 'retinoscope[hf]'"
        ) from None
    try:
        found = datasets.load_dataset(name)
    except Exception as error:  # network, hub, files or cache
        raise UnknownData(
            f"hf:{name} cannot be loaded: {type(error).__name__}: {first_line(error)} Expected is "
            "the name of a set on the Hugging Face hub, which takes a network, or a folder."
        ) from None
    if not isinstance(found, datasets.DatasetDict):
        raise UnknownData(f"hf:{name} is a {type(found).__name__}, which has no splits.")
    splits = {str(split): rows for split, rows in found.items()}
    features = next(iter(splits.values())).features
    image, label = _columns(features, image, label, f"hf:{name}")
    labels, classes = _labels(splits, label, f"hf:{name}") if label else ({}, None)
    called = name_splits(splits)
    return {
        called[split]: HubSource(rows, f"hf:{name} {split}", image, labels.get(split), classes)
        for split, rows in splits.items()
    }


def _columns(
    features: Mapping[str, Any], image: str | None, label: str | None, where: str
) -> tuple[str, str | None]:
    """The image column and the label column, or None without labels."""
    from datasets import ClassLabel, Image

    names = list(features)
    declared = [name for name, feature in features.items() if isinstance(feature, Image)]
    classes = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    kinds = {name: str(getattr(feature, "dtype", "")) for name, feature in features.items()}
    numbers = [name for name, kind in kinds.items() if kind.startswith(("int", "uint"))]
    texts = [name for name, kind in kinds.items() if kind in ("string", "large_string")]
    structs = [
        name
        for name, feature in features.items()
        if isinstance(feature, Mapping) and "bytes" in feature
    ]
    binary = [name for name, kind in kinds.items() if kind in ("binary", "large_binary")]
    if label is None:
        # Columns declared as classes are unambiguous; other text may be anything.
        numbers, texts = classes or numbers, []
    return (
        choose_image(declared or structs or binary, image, where, names),
        choose_label(numbers, texts, label, where, names),
    )


def _labels(
    found: Mapping[str, Any], label: str, where: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The labels of each split as integers, -1 if missing, and the class names."""
    values = {
        split: rows.select_columns([label]).with_format("arrow")[:][label].to_pylist()
        for split, rows in found.items()
    }
    different = {value for column in values.values() for value in column if value is not None}
    if any(isinstance(value, str) for value in different):
        classes = tuple(sorted(different))
        numbers = {name: number for number, name in enumerate(classes)}
        values = {split: [numbers.get(v) for v in column] for split, column in values.items()}
    else:
        largest = max(different, default=-1)
        names = getattr(next(iter(found.values())).features[label], "names", ())
        check_labels(largest, label, where, f"Choose with {where}:label=COLUMN")
        classes = tuple(names) or tuple(map(str, range(largest + 1)))
    arrays = {
        split: np.array([-1 if v is None else v for v in column], dtype=np.int64)
        for split, column in values.items()
    }
    return arrays, classes
