"""Images in Parquet tables, in the layout of Hugging Face and similar ones."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from retinoscope.core.errors import UnreadableFile, first_line
from retinoscope.data.columns import USUAL_LABELS, choose_image, choose_label, name_labels
from retinoscope.data.decode import decode_stored
from retinoscope.data.folder import SPLITS, name_splits
from retinoscope.data.source import Source, UnknownData, UnreadableImage

_Named = tuple[tuple[str, ...] | None, np.ndarray | None]
_CACHED_BYTES = 256 * 2**20
# A split's name, then perhaps a shard number or a suffix: train-00000-of-00002, test_clean.
_SPLIT = re.compile(rf"({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])", re.IGNORECASE)


class ParquetSource:
    """The rows of one or several tables. A row group is read when one of its images is requested.

    Args:
        paths: The tables, in order.
        image: The image column: structs of ``bytes`` and ``path``, or plain bytes. Default: the
            column of such a type with a usual name, or the only one.
        label: The label column, integers or text. Default: a column with a usual name, or the only
            column in which values repeat. Without such a column, or if all labels are negative,
            there are no labels.
        root: A folder that may contain ``classes.txt``, besides that of the tables.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        image: str | None = None,
        label: str | None = None,
        *,
        root: Path | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self.attributes: Mapping[str, np.ndarray] = {}
        schema = _common_schema(self.paths)
        columns = _image_columns(schema)
        self.image = choose_image(columns, image, str(self.paths[0]), schema.names)
        self._label = self._choose_label(schema, label)
        digest = hashlib.sha256(f"{self.image}\0{self._label}".encode())
        self._groups: list[tuple[int, int]] = []
        starts, self._first_rows = [0], [0]
        for number, path in enumerate(self.paths):
            metadata = _open(path).metadata
            for group in range(metadata.num_row_groups):
                self._groups.append((number, group))
                starts.append(starts[-1] + metadata.row_group(group).num_rows)
            self._first_rows.append(starts[-1])
            digest.update(_footer(path))
        self._starts = np.array(starts)
        self._content = digest.hexdigest()
        self._reader: _RowGroups | None = None
        self._settle(*self._read_labels(schema, root))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def name(self, index: int) -> str:
        """The table and the row in it."""
        (file, _), _ = self._find(index)
        return f"{self.paths[file].name} row {index - self._first_rows[file]}"

    def digest(self, index: int) -> bytes:
        """Empty: the fingerprint covers the files."""
        return b""

    def read(self, index: int) -> np.ndarray:
        """The image as RGB, uint8 (H, W, 3)."""
        (file, group), row = self._find(index)
        # A forked process must not share open files with its parent.
        if self._reader is None or self._reader.process != os.getpid():
            self._reader = _RowGroups(self.paths, self.image)
        name = self.name(index)
        try:
            value = self._reader.column(file, group)[row].as_py()
        except (pa.ArrowException, OSError) as error:
            raise UnreadableImage(f"{name} cannot be read: {first_line(error)}") from None
        return decode_stored(value, self.paths[file].parent, name)

    def share(self, classes: tuple[str, ...]) -> None:
        """Renumber the labels by ``classes``, which contain all classes of this source."""
        if self.classes is None or self.labels is None:
            return
        if self.classes == classes[: len(self.classes)]:  # two classes may have the same name
            self._settle(classes, self.labels)
        else:
            numbers = {name: number for number, name in enumerate(classes)}
            table = np.array([numbers[name] for name in self.classes], dtype=np.int64)
            self._settle(classes, table[self.labels])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def _find(self, index: int) -> tuple[tuple[int, int], int]:
        """The file and row group of an image, and its row in that group."""
        if not 0 <= index < len(self):
            raise IndexError(f"There is no image {index} among {len(self)}.")
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._groups[number], int(index - self._starts[number])

    def _settle(self, classes: tuple[str, ...] | None, labels: np.ndarray | None) -> None:
        self.classes, self.labels = classes, labels
        digest = hashlib.sha256(f"{self._content}{classes}".encode())
        digest.update(b"" if labels is None else labels.tobytes())
        self.fingerprint = digest.hexdigest()[:12]

    def _choose_label(self, schema: pa.Schema, asked: str | None) -> str | None:
        numbers = [field.name for field in schema if kinds.is_integer(field.type)]
        texts = [field.name for field in schema if _is_text(field.type)]
        if asked is None and not any(name.lower() in USUAL_LABELS for name in numbers + texts):
            # Columns whose values all differ are row numbers, file names or captions.
            values = {name: _column(self.paths, name) for name in numbers + texts}
            repeating = {name for name in values if len(values[name].unique()) < len(values[name])}
            numbers, texts = ([n for n in names if n in repeating] for names in (numbers, texts))
        return choose_label(numbers, texts, asked, str(self.paths[0]), schema.names)

    def _read_labels(self, schema: pa.Schema, root: Path | None) -> _Named:
        if self._label is None:
            return None, None
        values = _column(self.paths, self._label)
        if not kinds.is_integer(values.type):
            classes = tuple(sorted(filter(None, values.unique().to_pylist())))
            numbers = {name: number for number, name in enumerate(classes)}
            labels = np.array([numbers.get(name, -1) for name in values.to_pylist()], np.int64)
        else:
            labels = values.fill_null(-1).to_numpy().astype(np.int64)
            classes = None
        if (labels < 0).all():
            return None, None
        if (labels < 0).any():
            row = int(np.argmin(labels))
            raise UnreadableFile(
                f"{self.name(row)} has no label in the column {self._label!r}, but others have."
            )
        folders = [self.paths[0].parent, *([root] if root else [])]
        return classes or name_labels(labels, schema, self._label, self.paths[0], folders), labels


class _RowGroups:
    """The open tables of one process, and a cache of the row groups that were read last."""

    def __init__(self, paths: Sequence[Path], image: str) -> None:
        self.process = os.getpid()
        self._paths, self._image = paths, image
        self._files: dict[int, pq.ParquetFile] = {}
        self._cached: OrderedDict[tuple[int, int], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def column(self, file: int, group: int) -> pa.ChunkedArray:
        """The stored images of one row group."""
        with self._lock:
            if (file, group) not in self._cached:
                if file not in self._files:
                    self._files[file] = pq.ParquetFile(self._paths[file])
                # Arrow's threads do not survive a fork, and waiting for them would hang.
                opened = self._files[file]
                table = opened.read_row_group(group, columns=[self._image], use_threads=False)
                self._cached[file, group] = table.column(0)
            self._cached.move_to_end((file, group))
            sizes = [column.nbytes for column in self._cached.values()]
            while len(sizes) > 1 and sum(sizes) > _CACHED_BYTES:
                self._cached.popitem(last=False)
                del sizes[0]
            return self._cached[file, group]


def find_splits(
    path: Path, image: str | None = None, label: str | None = None
) -> dict[str, Source]:
    """The tables in a folder, at any depth, by split; a single file is always ``test``.

    A table's split is the beginning of its name (``train-00000-of-00002.parquet``), or else the
    name of its folder. If no table is named after a split, all of them are ``test``.
    """
    if path.is_file():
        return {"test": ParquetSource([path], image, label)}
    hidden = re.compile(r"(^|/)\.")
    found = [(file, file.relative_to(path).as_posix()) for file in path.rglob("*.parquet")]
    files = [file for file, inside in found if not hidden.search(inside)]
    if not files:
        raise UnknownData(f"There are no .parquet files in {str(path)!r}.")
    return split_tables(files, path, image, label)


def split_tables(
    files: Sequence[Path], root: Path, image: str | None = None, label: str | None = None
) -> dict[str, Source]:
    """The given tables inside ``root``, by split. All splits have the same classes."""
    found = _by_split(sorted(files), root)
    called = name_splits(found)
    sources = {
        called[split]: ParquetSource(shards, image, label, root=root)
        for split, shards in found.items()
    }
    lists = {source.classes for source in sources.values() if source.classes}
    longest = max(lists, key=len, default=())
    if not all(longest[: len(classes)] == classes for classes in lists):
        longest = tuple(sorted({name for classes in lists for name in classes}))
    for source in sources.values():
        source.share(longest)
    return dict(sources)


def _by_split(files: Sequence[Path], root: Path) -> dict[str, list[Path]]:
    """The tables of each split, by the split's name in the files."""
    found: dict[str, list[Path]] = {}
    places: set[str] = set()
    for file in files:
        in_split = file.parent != root and file.parent.name.lower() in SPLITS
        places.add(str((file.parent.parent if in_split else file.parent).relative_to(root)))
        named = _SPLIT.match(file.stem)
        own = re.sub(r"-\d+-of-\d+$", "", file.stem)
        split = named.group() if named else file.parent.name if in_split else own
        found.setdefault(split.lower(), []).append(file)
    if len(places) > 1:
        raise UnknownData(
            f"{str(root)!r} holds tables in several folders: {', '.join(sorted(places))}. Name one "
            "of these instead."
        )
    return found if any(split in SPLITS for split in found) else {"test": list(files)}


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UnreadableFile:
    return UnreadableFile(
        f"{str(path)!r} cannot be read as a Parquet table: {first_line(error)} It is damaged, or "
        "was not copied to its end. Copy or download it again."
    )


def _footer(path: Path) -> bytes:
    """A table's size and its footer, which includes statistics of each column."""
    with path.open("rb") as file:
        size = file.seek(-8, os.SEEK_END) + 8
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return str(size).encode() + file.read(length)


def _common_schema(paths: Sequence[Path]) -> pa.Schema:
    first, *others = (_open(path).schema_arrow for path in paths)
    for path, schema in zip(paths[1:], others, strict=True):
        if set(schema.names) != set(first.names):
            raise UnknownData(
                f"{str(path)!r} has other columns ({', '.join(schema.names)}) than {paths[0].name} "
                f"({', '.join(first.names)}). Name one of the files instead."
            )
    return first


def _column(paths: Sequence[Path], name: str) -> pa.ChunkedArray:
    """A column of all tables, as int64 or as text."""
    number = kinds.is_integer(_open(paths[0]).schema_arrow.field(name).type)
    kind = pa.int64() if number else pa.string()
    chunks: list[pa.Array] = []
    for path in paths:
        try:
            column = _open(path).read(columns=[name], use_threads=False).column(0)
            chunks += column.cast(kind).chunks
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None
    return pa.chunked_array(chunks, kind)


def _is_text(kind: pa.DataType) -> bool:
    inside = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return inside in (pa.string(), pa.large_string())


def _image_columns(schema: pa.Schema) -> list[str]:
    """The columns of structs with bytes or a path; if there are none, the columns of bytes."""
    structs = [
        field.name
        for field in schema
        if isinstance(field.type, pa.StructType)
        and {inner.name for inner in field.type} & {"bytes", "path"}
    ]
    binary = (pa.binary(), pa.large_binary())
    return structs or [field.name for field in schema if field.type in binary]
