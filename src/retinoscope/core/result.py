"""An answer as plain data: arrays with named axes, values, and the protocol that gave them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

import numpy as np

from retinoscope.core.coverage import Claim, Coverage, by_kind
from retinoscope.core.errors import UnreadableFile
from retinoscope.core.files import write_atomically

T = TypeVar("T")
_AGAIN = "Measure it again with: retinoscope examine"


def axes(
    *names: str,
    unit: str = "",
    title: str = "",
    x: str = "",
    error: str = "",
    changes: str = "",
    claim: Claim | None = None,
    rows: str = "",
    marks: str = "",
    y: str = "",
    points: str = "",
    figure: bool = True,
    draw: Literal["", "matrix", "images"] = "",
    colours: Literal["sequential", "diverging"] = "sequential",
    limits: tuple[float, float] | None = None,
    row_groups: str = "",
    column_groups: str = "",
    shade: str = "",
) -> Any:
    """A field that holds an array with one axis per name.

    Figures and tables are made from this alone: it is saved with the result, so neither the page
    nor matplotlib needs the class. The shape says what is drawn: a value or a curve per unit, a
    curve, bars (``rows``), a map (``y``); ``draw`` asks for a matrix or images instead. Arguments
    that end in "field" take the name of another field of the same result.

    Args:
        names: What each axis counts; ``unit`` stands for the units of the anatomy.
        unit: Of the values.
        title: What the array shows, in a few words.
        x: Coordinates along the last axis: a field.
        error: Standard errors: a field.
        changes: For what each unit does to its input: to what, in words.
        claim: What a paper finds about that; findings say where most units do the opposite.
        rows: Names along the first axis: a field; units have theirs. Captions of images.
        y: Coordinates along the first of two axes: a field. The array is a map.
        points: Names along the last axis: a field; units have theirs.
        marks: Coordinates along the last axis to mark, each with words: a field.
        figure: Whether it has a figure of its own.
        draw: ``matrix`` for a heat map with named rows and columns; ``images`` for a strip of
            images (N, H, W), coloured by value, or (N, H, W, 3), red, green and blue from 0 to 1.
        colours: Of a map, a matrix or images: from dark to light, or to either side of 0.
        limits: Values at the ends of the colours; from the values if not given.
        row_groups: A group for each row of a matrix: a field; a border is drawn where it changes.
            Units have their stages.
        column_groups: The same for columns.
        shade: Values that colour the points of a path: a field.
    """
    return field(
        metadata={
            "axes": names, "unit": unit, "title": title, "x": x, "error": error,
            "changes": changes, "claim": claim and asdict(claim), "rows": rows, "marks": marks,
            "y": y, "points": points, "figure": figure, "draw": draw, "colours": colours,
            "limits": limits, "row_groups": row_groups, "column_groups": column_groups,
            "shade": shade,
        }
    )  # fmt: skip


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
def answer(cls: type[T]) -> type[T]:
    """Make a class of results a frozen dataclass that compares and prints as all results do."""
    return dataclass(frozen=True, eq=False, repr=False, kw_only=True)(cls)


class _Covered:
    """An entry of a result's coverage as an attribute; empty where it does not speak of units.

    Unlike a property, it gives way to a field of the same name in a class of the user's own.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Result | None, owner: type) -> Any:
        if result is None:  # dataclasses would take what is returned here for a default
            raise AttributeError(self.name)
        return () if result.coverage is None else getattr(result.coverage, self.name)


@answer
class Result:
    """The base of all answers: one level of subclasses, which add fields and findings only."""

    probe: ClassVar[str] = ""
    schema: ClassVar[int] = 1

    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Model, weights, data, split, augmentation, precision, settings, versions."""
    coverage: Coverage | None = None
    """Which units it speaks of; None where it speaks of the network as a whole."""

    units = _Covered()
    kinds = _Covered()
    stages = _Covered()
    subsamples = _Covered()
    skipped = _Covered()

    def findings(self) -> list[str]:
        """What it says, as parts of a sentence each, the most important first.

        Unless a class says more: what each kind of unit does, where an array has ``changes``.
        """
        for name, described in self.described().items():
            if changed := described.metadata["changes"]:
                steps, claim = getattr(self, name), described.metadata.get("claim")
                claim = Claim(**claim) if claim else None
                return by_kind(self.kinds, self.subsamples, steps, changed, claim)
        return []

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by the names of their fields."""
        return {f.name: getattr(self, f.name) for f in fields(self) if "axes" in f.metadata}

    def values(self) -> dict[str, Any]:
        """Everything else, as plain values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if "axes" not in f.metadata}
        covered = plain.pop("coverage")
        return plain if covered is None else plain | {"coverage": asdict(covered)}

    @classmethod
    def described(cls) -> dict[str, Field[Any]]:
        """The fields that hold arrays, with what :func:`axes` says about them."""
        return {f.name: f for f in fields(cls) if "axes" in f.metadata}

    def __eq__(self, other: object) -> bool:
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
        plain |= {"findings": self._said()} | self.values()
        plain["sha256"] = seal(plain, packed)
        text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / f"{stem}.npz", packed)
        # Written last: where it exists, the arrays beside it are whole.
        write_atomically(folder / f"{stem}.json", text + "\n")

    def _said(self) -> list[str]:
        """The findings; a fault in a sentence must not cost the measurement."""
        try:
            return self.findings()
        except Exception as error:
            return [f"what was found could not be said: {type(error).__name__}: {error}"]

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
        del plain["described"]
        plain.pop("findings", None)
        return cls._from(plain, unpack(packed), path)

    @classmethod
    def _from(cls, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: Path) -> Self:
        values = {k: _frozen(v) if k != "protocol" else v for k, v in _lifted(plain, cls).items()}
        if (covered := values.get("coverage")) is not None:
            values["coverage"] = Coverage(**{k: _frozen(v) for k, v in covered.items()})
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
    said = plain.pop("findings", None)
    plain = _lifted(plain, Result)
    columns = [(name, Any, field(metadata=about)) for name, about in described.items()]
    values = [(name, Any) for name in plain if name not in ("protocol", "coverage")]
    own: dict[str, Any] = {"probe": probe, "schema": schema}
    if said is not None:  # older files do not have them
        own["findings"] = lambda self: [str(words) for words in said]
    made = make_dataclass(
        f"{probe}_result", [*values, *columns], bases=(Result,), frozen=True, eq=False,
        repr=False, kw_only=True, namespace=own,
    )  # fmt: skip
    return made._from(plain, unpack(packed), path)


def _lifted(plain: Mapping[str, Any], cls: type[Result]) -> dict[str, Any]:
    """The values of a file whose coverage was five fields, as they are saved today."""
    names = {f.name for f in fields(Coverage)}
    if "coverage" in plain or not names <= set(plain) or names & {f.name for f in fields(cls)}:
        return dict(plain)
    rest = {k: v for k, v in plain.items() if k not in names}
    return rest | {"coverage": {k: plain[k] for k in names}}


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
    buffer = io.BytesIO()
    plain = {name: np.asarray(arrays[name]) for name in sorted(arrays)}
    if pickled := [name for name, array in plain.items() if array.dtype.hasobject]:
        raise TypeError(f"Arrays hold numbers, not objects: {', '.join(pickled)}.")
    np.savez(buffer, **plain)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, np.ndarray]:
    """What :func:`pack` packed; nothing in it is run."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
