"""An answer as plain data: arrays with named axes, values, and the protocol that gave them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

from retinoscope.core.errors import UnreadableFile
from retinoscope.core.files import write_atomically

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
_AGAIN = "Measure it again with: retinoscope examine"


def axes(
    *names: str,
    unit: str = "",
    title: str = "",
    x: str = "",
    error: str = "",
    changes: str = "",
    rows: str = "",
    marks: str = "",
    y: str = "",
    points: str = "",
    figure: bool = True,
) -> Any:
    """A field that holds an array with one axis per name.

    Figures and tables take their labels from here.

    Args:
        names: What each axis counts; ``unit`` stands for the units of the anatomy.
        unit: Of the values.
        title: What the array shows, in a few words.
        x: The field with the places along the last axis.
        error: The field with the standard errors.
        changes: For what each unit does to its input: to what, in words.
        rows: The field with the names of the places along the first axis; units have theirs.
        y: The field with the places along the first of two axes: the array is a map.
        points: The field with the names of the places along the last axis.
        marks: The field with places along the last axis that should be seen, and words for each.
        figure: Whether it is worth a picture of its own.
    """
    return field(
        metadata={
            "axes": names, "unit": unit, "title": title, "x": x, "error": error,
            "changes": changes, "rows": rows, "marks": marks, "y": y, "points": points,
            "figure": figure,
        }
    )  # fmt: skip


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
def answer(cls: type[T]) -> type[T]:
    """Make a class of results a frozen dataclass that compares and prints as all results do."""
    return dataclass(frozen=True, eq=False, repr=False, kw_only=True)(cls)


@answer
class Result:
    """The base of all answers: one level of subclasses, which add fields only."""

    probe: ClassVar[str] = ""
    schema: ClassVar[int] = 1

    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Model, weights, data, split, augmentation, precision, settings, versions."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by the names of their fields."""
        return {f.name: getattr(self, f.name) for f in fields(self) if "axes" in f.metadata}

    def values(self) -> dict[str, Any]:
        """Everything else, as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if "axes" not in f.metadata}

    @classmethod
    def described(cls) -> dict[str, Field[Any]]:
        """The fields that hold arrays, with what :func:`axes` says about them."""
        return {f.name: f for f in fields(cls) if "axes" in f.metadata}

    def __eq__(self, other: object) -> bool:
        import numpy as np

        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.arrays(), other.arrays()
        return self.values() == other.values() and all(
            np.array_equal(mine[k], theirs[k], equal_nan=True) for k in mine
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __str__(self) -> str:
        model = self.protocol.get("model", "")
        lines = [f"{self.probe} of {model}" if model else self.probe]
        for name, described in self.described().items():
            array = getattr(self, name)
            shape = " × ".join(
                f"{n} {a}" for n, a in zip(array.shape, described.metadata["axes"], strict=True)
            )
            lines.append(f"  {name}: {shape}, {described.metadata['unit'] or 'no unit'}")
        return "\n".join(lines)

    __repr__ = __str__

    def save(self, folder: Path, stem: str | None = None) -> None:
        """Write ``STEM.npz``, then ``STEM.json`` with its hash; STEM is the probe if not given."""
        stem = stem or self.probe
        packed = pack(self.arrays())
        described = {name: dict(f.metadata) for name, f in self.described().items()}
        plain = {"probe": self.probe, "schema": self.schema, "described": described}
        plain |= self.values()
        plain["sha256"] = seal(plain, packed)
        text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / f"{stem}.npz", packed)
        # Written last: where it exists, the arrays beside it are whole.
        write_atomically(folder / f"{stem}.json", text + "\n")

    @classmethod
    def load(cls, folder: Path, stem: str | None = None) -> Self:
        """Read what :meth:`save` wrote; another probe, schema or damage is refused by name."""
        path = folder / f"{stem or cls.probe}.json"
        plain, packed = _read(path)
        found = plain.pop("probe"), plain.pop("schema")
        if found != (cls.probe, cls.schema):
            raise UnreadableFile(
                f"{str(path)!r} holds {found[0]} of schema {found[1]}, but this version reads "
                f"{cls.probe} of schema {cls.schema}. {_AGAIN}"
            )
        plain.pop("described")
        return cls._from(plain, unpack(packed), path)

    @classmethod
    def _from(cls, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: Path) -> Self:
        values = {k: _frozen(v) if k != "protocol" else v for k, v in plain.items()}
        given: dict[str, Any] = values | dict(arrays)
        expected = {f.name for f in fields(cls)}
        optional = {
            f.name
            for f in fields(cls)
            if f.default is not MISSING or f.default_factory is not MISSING
        }
        if set(given) - expected or expected - optional - set(given):
            raise UnreadableFile(
                f"{str(path)!r} has the fields {sorted(given)}; expected {sorted(expected)}. "
                f"{_AGAIN}"
            )
        return cls(**given)


def load_described(folder: Path, stem: str) -> Result:
    """A result whose class is not known here, as one made from what the file says of itself."""
    path = folder / f"{stem}.json"
    plain, packed = _read(path)
    probe, schema, described = (plain.pop(k) for k in ("probe", "schema", "described"))
    columns = [(name, Any, field(metadata=about)) for name, about in described.items()]
    values = [(name, Any) for name in plain if name != "protocol"]
    made = make_dataclass(
        f"{probe}_result", [*values, *columns], bases=(Result,), frozen=True, eq=False,
        repr=False, kw_only=True, namespace={"probe": probe, "schema": schema},
    )  # fmt: skip
    return made._from(plain, unpack(packed), path)


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """The values and the packed arrays of a result, if they are whole."""
    try:
        plain = json.loads(path.read_text())
        packed = path.with_name(path.name.removesuffix(".json") + ".npz").read_bytes()
        digest, *_ = plain.pop("sha256"), plain["probe"], plain["schema"], plain["described"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} is not a whole result: {type(error).__name__}: {error}. {_AGAIN}"
        ) from None
    if digest != seal(plain, packed):
        raise UnreadableFile(f"{str(path)!r} or the arrays beside it are damaged. {_AGAIN}")
    return plain, packed


def seal(plain: Mapping[str, Any], packed: bytes) -> str:
    """A hash of values and packed arrays, by which a file shows that both are whole.

    The values as JSON gives them back: tuples are lists there.
    """
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode() + packed).hexdigest()


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as the bytes of an ``.npz`` file; the same arrays give the same bytes."""
    import numpy as np

    buffer = io.BytesIO()
    plain = {name: np.asarray(arrays[name]) for name in sorted(arrays)}
    if pickled := [name for name, array in plain.items() if array.dtype.hasobject]:
        raise TypeError(f"Arrays hold numbers, not objects: {', '.join(pickled)}.")
    np.savez(buffer, **plain)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, np.ndarray]:
    """What :func:`pack` packed; nothing in it is run."""
    import numpy as np

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
