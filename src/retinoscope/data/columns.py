"""Choice of a table's image and label columns, and names of the classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from retinoscope.core.errors import UnreadableFile, first_line
from retinoscope.data.source import UnknownData

_USUAL_IMAGES = ("image", "img")
USUAL_LABELS = ("label", "labels", "fine_label", "target", "class", "class_id")
_MOST_CLASSES = 1_000_000


def choose_image(
    candidates: Sequence[str], asked: str | None, where: str, columns: Sequence[str]
) -> str:
    """The image column: the requested one, one with a usual name, or the only candidate."""
    chosen = _choose("images", candidates, _USUAL_IMAGES, asked, where, columns)
    if chosen is None:
        raise UnknownData(
            f"{where!r} has no column of images, which are bytes, or structs of bytes and path. "
            f"Its columns are {', '.join(columns)}."
        )
    return chosen


def choose_label(
    numbers: Sequence[str],
    texts: Sequence[str],
    asked: str | None,
    where: str,
    columns: Sequence[str],
) -> str | None:
    """The label column, integers before text; None if there is none."""
    both = [*numbers, *texts]
    usual = [name for name in both if name.lower() in USUAL_LABELS]
    candidates = both if asked is not None else usual or numbers or texts
    return _choose("labels", candidates, USUAL_LABELS, asked, where, columns)


def _choose(
    what: str,
    candidates: Sequence[str],
    usual: Sequence[str],
    asked: str | None,
    where: str,
    columns: Sequence[str],
) -> str | None:
    if asked is not None:
        if asked in candidates:
            return asked
        problem = "is of another type" if asked in columns else "does not exist"
        raise UnknownData(
            f"The column {asked!r} of {where!r} cannot hold the {what}: it {problem}. Those that "
            f"could are {', '.join(candidates) or 'none'}; all are {', '.join(columns)}."
        )
    named = sorted(
        (name for name in candidates if name.lower() in usual),
        key=lambda name: usual.index(name.lower()),
    )
    if len(candidates) > 1 and not named:
        raise UnknownData(
            f"Several columns of {where!r} could hold the {what}: {', '.join(candidates)}. "
            f"{_how_to_choose(where)}"
        )
    return next(iter([*named, *candidates]), None)


def _how_to_choose(where: str) -> str:
    return f"Choose with {where}:image=COLUMN,label=COLUMN"


def check_labels(largest: int, column: str, where: str, advice: str) -> None:
    """Refuse a column whose numbers are too large to be class labels."""
    if largest >= _MOST_CLASSES:
        raise UnknownData(
            f"The column {column!r} of {where!r} goes up to {largest}: these are no labels. "
            f"{advice}"
        )


def name_labels(
    labels: np.ndarray, schema: pa.Schema, column: str, table: Path, folders: Iterable[Path]
) -> tuple[str, ...]:
    """The class names: from the table's schema or ``classes.txt``, otherwise the numbers as text.

    Args:
        labels: One label per image, none of them negative.
        schema: The table's schema; Hugging Face stores class names in it.
        column: The label column.
        table: The file, for messages.
        folders: Where to look for ``classes.txt``, with one name per line. A list that is too
            short for the labels is ignored.
    """
    largest = int(labels.max())
    check_labels(largest, column, str(table), _how_to_choose(str(table)))
    lists = [_schema_names(schema, column)]
    lists += [_listed_names(folder / "classes.txt") for folder in folders]
    fitting = (names for names in lists if len(names) > largest)
    return next(fitting, tuple(map(str, range(largest + 1))))


def _listed_names(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    try:
        return tuple(line.strip() for line in path.read_text("utf-8").rstrip().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} cannot be read as class names, one in each line: {first_line(error)}"
        ) from None


def _schema_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])
        names = noted["info"]["features"][column]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()
