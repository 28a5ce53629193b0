"""Results as plain data: arrays with named axes, values, and the protocol of the measurement."""

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
    log: bool = False,
    choices: str = "",
    over: str = "",
) -> Any:
    """A field that contains an array with one axis per name.

    Figures and tables are made from this description alone. It is saved with the result, so neither
    the report nor matplotlib needs the class. The shape determines the figure: a value or a curve
    per unit, a curve, bars (``rows``), a map (``y``); ``draw`` selects a matrix or images instead.
    Arguments described as "a field" take the name of another field of the same result.

    Args:
        names: The name of each axis; ``unit`` stands for the units of the anatomy.
        unit: The unit of measurement of the values.
        title: What the array shows, in a few words.
        x: Coordinates along the last axis: a field.
        error: Standard errors: a field.
        changes: If the values are changes caused by each unit: the quantity that changes, in words.
        claim: A paper's claim about these changes; findings say if most units do the opposite.
        rows: Names along the first axis: a field; units have theirs. Captions of images.
        y: Coordinates along the first of two axes: a field. The array is a map.
        points: Names along the last axis: a field; units have theirs.
        marks: Coordinates along the last axis to mark, each with a text: a field.
        figure: Whether it has a figure of its own.
        draw: ``matrix`` for a heat map with named rows and columns; ``images`` for a strip of
            images (N, H, W), coloured by value, or (N, H, W, 3), red, green and blue from 0 to 1.
        colours: The colour scale of a map, a matrix or images: dark to light, or diverging from 0.
        limits: Values at the ends of the colour scale. Default: the range of the values.
        row_groups: The group of each row of a matrix: a field; a border is drawn between groups.
            Units are grouped by stage.
        column_groups: The same for columns.
        shade: Values that colour the points of a path: a field.
        log: Whether lines have a logarithmic y axis; values of 0 or less are gaps.
        choices: Names along the first of four axes (choice, N, H, W): a field. The report shows the
            images of one choice at a time, matplotlib those of the first.
        over: RGB images under the images, each for the same number of consecutive ones: a field.
    """
    return field(
        metadata={
            "axes": names, "unit": unit, "title": title, "x": x, "error": error,
            "changes": changes, "claim": claim and asdict(claim), "rows": rows, "marks": marks,
            "y": y, "points": points, "figure": figure, "draw": draw, "colours": colours,
            "limits": limits, "row_groups": row_groups, "column_groups": column_groups,
            "shade": shade, "log": log, "choices": choices, "over": over,
        }
    )  # fmt: skip


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
def answer(cls: type[T]) -> type[T]:
    """Turn a result class into a frozen dataclass that compares and prints like all results."""
    return dataclass(frozen=True, eq=False, repr=False, kw_only=True)(cls)


class _Covered:
    """An entry of a result's coverage as an attribute; empty if the result does not cover units.

    Unlike a property, a field of the same name in a user's class overrides it.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Result | None, owner: type) -> Any:
        if result is None:  # dataclasses would use a returned value as a default
            raise AttributeError(self.name)
        return () if result.coverage is None else getattr(result.coverage, self.name)


@answer
class Result:
    """The base class of all results; subclasses (one level) only add fields and findings."""

    probe: ClassVar[str] = ""
    schema: ClassVar[int] = 1

    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Model, weights, data, split, augmentation, precision, settings, versions."""
    coverage: Coverage | None = None
    """The units that it covers; None if it is about the network as a whole."""

    units = _Covered()
    kinds = _Covered()
    stages = _Covered()
    subsamples = _Covered()
    skipped = _Covered()

    def findings(self) -> list[str]:
        """The findings as parts of a sentence, the most important first.

        By default: what each kind of unit does, for arrays with ``changes``.
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
        """The fields that contain arrays, with their descriptions from :func:`axes`."""
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
        """Write ``STEM.npz``, then ``STEM.json`` with its hash; default STEM: the probe's name."""
        stem = stem or self.probe
        packed = pack(self.arrays())
        described = {name: dict(f.metadata) for name, f in self.described().items()}
        plain = {"probe": self.probe, "schema": self.schema, "described": described}
        plain |= {"findings": self._said()} | self.values()
        plain["sha256"] = seal(plain, packed)
        text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / f"{stem}.npz", packed)
        # Written last: if it exists, the arrays next to it are complete.
        write_atomically(folder / f"{stem}.json", text + "\n")

    def _said(self) -> list[str]:
        """The findings; an error in their text must not lose the measurement."""
        try:
            return self.findings()
        except Exception as error:
            return [f"the findings could not be written: {type(error).__name__}: {error}"]

    @classmethod
    def load(cls, folder: Path, stem: str | None = None) -> Self:
        """Read the output of :meth:`save`; fails for another probe or schema, or damaged files."""
        path = folder / f"{stem or cls.probe}.json"
        plain, packed = _read(path)
        found = plain.pop("probe"), plain.pop("schema")
        if found != (cls.probe, cls.schema):
            raise UnreadableFile(
                f"{str(path)!r} contains {found[0]} of schema {found[1]}, but this version reads "
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
    """A result whose class is not available here, built from the description in its file."""
    path = folder / f"{stem}.json"
    plain, packed = _read(path)
    probe, schema, described = (plain.pop(k) for k in ("probe", "schema", "described"))
    said = plain.pop("findings", None)
    plain = _lifted(plain, Result)
    columns = [(name, Any, field(metadata=about)) for name, about in described.items()]
    values = [(name, Any) for name in plain if name not in ("protocol", "coverage")]
    own: dict[str, Any] = {"probe": probe, "schema": schema}
    if said is not None:  # absent in older files
        own["findings"] = lambda self: [str(words) for words in said]
    made = make_dataclass(
        f"{probe}_result", [*values, *columns], bases=(Result,), frozen=True, eq=False,
        repr=False, kw_only=True, namespace=own,
    )  # fmt: skip
    return made._from(plain, unpack(packed), path)


def _lifted(plain: Mapping[str, Any], cls: type[Result]) -> dict[str, Any]:
    """The values of a file with the former five coverage fields, in today's format."""
    names = {f.name for f in fields(Coverage)}
    if "coverage" in plain or not names <= set(plain) or names & {f.name for f in fields(cls)}:
        return dict(plain)
    rest = {k: v for k, v in plain.items() if k not in names}
    return rest | {"coverage": {k: plain[k] for k in names}}


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """The values and the packed arrays of a result; fails if they are damaged."""
    try:
        plain = json.loads(path.read_text())
        packed = path.with_name(path.name.removesuffix(".json") + ".npz").read_bytes()
        digest, *_ = plain.pop("sha256"), plain["probe"], plain["schema"], plain["described"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} is not a complete result: {type(error).__name__}: {error}. {_AGAIN}"
        ) from None
    if digest != seal(plain, packed):
        raise UnreadableFile(f"{str(path)!r} or the array file next to it is damaged. {_AGAIN}")
    return plain, packed


def seal(plain: Mapping[str, Any], packed: bytes) -> str:
    """A hash of values and packed arrays, which shows that both are undamaged.

    The values are hashed as JSON returns them, with lists instead of tuples.
    """
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode() + packed).hexdigest()


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Pack arrays into the bytes of an ``.npz`` file; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    plain = {name: np.asarray(arrays[name]) for name in sorted(arrays)}
    if pickled := [name for name, array in plain.items() if array.dtype.hasobject]:
        raise TypeError(f"Arrays must contain numbers, not objects: {', '.join(pickled)}.")
    np.savez(buffer, **plain)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, np.ndarray]:
    """The arrays that :func:`pack` packed; no code in them is executed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
