"""The list of a backbone's units, which can be printed, compared, saved as JSON and read back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from retinoscope.core.errors import UnknownUnit, UnreadableFile
from retinoscope.core.unit import Grid, Kind, Unit

_LETTERS = {
    Kind.CONV: "C", Kind.ATTENTION: "A", Kind.CHANNEL_ATTENTION: "a", Kind.MLP: "M",
    Kind.TOKEN_MLP: "m", Kind.POOL: "P", Kind.OTHER: "?",
}  # fmt: skip


@dataclass(frozen=True)
class Anatomy:
    """The units of a model, in the order in which an image passes through them."""

    schema: ClassVar[int] = 1

    model: str
    units: tuple[Unit, ...]
    image: tuple[int, int, int] = (3, 224, 224)
    """Channels, height and width of the image that the anatomy was read with."""
    weights: str = "unknown"
    """The weights of the model: a tag, a hash, or ``untrained, seed 0``."""

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.units)

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, name: str) -> Unit:
        """The unit of that name, including inner units."""
        for unit in self.walk():
            if unit.name == name:
                return unit
        raise UnknownUnit(name, self.model, [unit.name for unit in self.walk()])

    def walk(self) -> Iterator[Unit]:
        """All units, each followed by its inner units."""
        return _walk(self.units)

    def where(
        self,
        kind: Kind | str | Iterable[Kind | str] | None = None,
        stage: int | None = None,
        residual: bool | None = None,
    ) -> Anatomy:
        """The same anatomy with only the units that match all conditions."""
        kinds = [kind] if isinstance(kind, str) else None if kind is None else list(kind)
        fitting = (
            unit
            for unit in self.units
            if (kinds is None or unit.kind in [Kind(k) for k in kinds])
            and (stage is None or unit.stage == stage)
            and (residual is None or unit.residual == residual)
        )
        return replace(self, units=tuple(fitting))

    @property
    def stages(self) -> tuple[int, ...]:
        """The stage numbers, in order."""
        return tuple(dict.fromkeys(unit.stage for unit in self.units if unit.stage is not None))

    @property
    def parameters(self) -> int:
        """The number of learned parameters of all units."""
        return sum(unit.parameters for unit in self.units)

    @property
    def flops(self) -> int:
        """FLOPs per image; a multiply-add counts as two."""
        return sum(unit.flops for unit in self.units)

    def summary(self) -> str:
        """The number of units of each kind, in one line.

        Example:
            >>> Anatomy("empty", ()).summary()
            'no units'
        """
        count = Counter(unit.kind for unit in self.units)
        return ", ".join(f"{n} {kind}" for kind, n in count.items()) or "no units"

    @property
    def sketch(self) -> str:
        """The body in one line: one letter per unit, ↓ if it subsamples, | between stages.

        C is a convolution, A attention, a channel attention, M an MLP, m an MLP over positions, P
        pooling, ? anything else.

        Example:
            >>> unit = Unit("x", Kind.CONV, 1, 0, True, False, None, 8, 0, 0)
            >>> Anatomy("two", (unit, replace(unit, stage=2, subsamples=True))).sketch
            'C|C↓'
        """
        stages = [self.where(stage=stage) for stage in self.stages]
        return "|".join("".join(_LETTERS[u.kind] + "↓" * u.subsamples for u in s) for s in stages)

    def __str__(self) -> str:
        channels, height, width = self.image
        lines = [f"{self.model} ({self.weights}), {channels}×{height}×{width}: {self.summary()}"]
        for unit in self.units:
            lines += _lines(unit, "  ")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The whole anatomy as JSON text; :meth:`from_json` reads it back."""
        plain = {"schema": self.schema} | asdict(self)
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Anatomy:
        """Read the output of :meth:`to_json`; raises an error for any other input."""
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise UnreadableFile(
                f"This is not an anatomy: it is not JSON ({error}). "
                "Write one with: retinoscope anatomy MODEL --save F.json"
            ) from None
        if not isinstance(plain, dict) or "schema" not in plain:
            raise UnreadableFile(
                "This JSON is not an anatomy: it has no schema number. "
                "Write one with: retinoscope anatomy MODEL --save F.json"
            )
        if (found := plain.pop("schema")) != cls.schema:
            raise UnreadableFile(
                f"This anatomy has schema {found}, but this version reads {cls.schema}. Write it "
                "again with: retinoscope anatomy MODEL --save F.json"
            )
        try:
            units = tuple(_unit(unit) for unit in plain.pop("units"))
            return cls(units=units, image=tuple(plain.pop("image")), **plain)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableFile(
                f"This anatomy is damaged: {type(error).__name__}: {error}. Write it again with: "
                "retinoscope anatomy MODEL --save F.json"
            ) from None


def _walk(units: Iterable[Unit]) -> Iterator[Unit]:
    for unit in units:
        yield unit
        yield from _walk(unit.inner)


def _lines(unit: Unit, indent: str) -> Iterator[str]:
    marks = " ↓" * unit.subsamples + " +" * unit.residual
    stage = f"stage {unit.stage}, " if unit.stage is not None else ""
    grid = str(unit.grid) if unit.grid else "no grid"
    yield f"{indent}{unit.name}: {unit.kind}{marks}, {stage}{grid}, {unit.channels} channels"
    for inner in unit.inner:
        yield from _lines(inner, indent + "  ")


def _unit(plain: dict[str, Any]) -> Unit:
    grid = plain.pop("grid")
    return Unit(
        kind=Kind(plain.pop("kind")),
        grid=Grid(**grid) if grid else None,
        inner=tuple(_unit(inner) for inner in plain.pop("inner")),
        **plain,
    )
