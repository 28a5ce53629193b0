"""An array of a result together with the description in its field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from retinoscope.core.result import Result
from retinoscope.core.wording import number


class Declared:
    """Values, names, coordinates and labels; files of older versions describe less."""

    def __init__(self, result: Result, name: str, about: Mapping[str, Any]) -> None:
        self.result, self.name, self.about = result, name, about
        self.values: np.ndarray = np.asarray(getattr(result, name))
        self.axis: str = about["axes"][0]
        self.unit: str = about["unit"]
        self.title: str = about["title"] or name.replace("_", " ")
        self.errors = self.other("error", np.full(self.values.shape, np.nan))
        self.error_head = ("standard error",) if about["error"] else ()

    def other(self, key: str, missing: Any = ()) -> Any:
        """The field that is named there."""
        return getattr(self.result, self.about[key]) if self.about.get(key) else missing

    def unit_of(self, key: str) -> str:
        """The unit of the field that is named there."""
        name = self.about.get(key)
        return self.result.described()[name].metadata["unit"] if name else ""

    def error(self, value: float) -> tuple[str, ...]:
        """The standard error as a table cell, if known."""
        return (number(value),) if self.about["error"] else ()

    @property
    def draw(self) -> str:
        """The requested kind of figure; empty if the shape determines it."""
        return self.about.get("draw") or ""

    @property
    def fits(self) -> bool:
        """Whether its shape can be drawn; a map of one row is a line, not a map."""
        shape = self.values.shape
        if self.draw == "images":
            dimensions = len(shape) - bool(self.about.get("choices"))
            coloured = dimensions == 4 and shape[-1] == 3
            return self.values.size > 0 and (dimensions == 3 or coloured)
        if self.draw == "matrix":
            return self.values.size > 0 and len(shape) == 2
        if self.about.get("y"):
            return len(shape) == 2 and min(shape) > 1
        return len(shape) == 1 or (len(shape) == 2 and bool(self.names))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return bool(np.isnan(self.values).all())

    @property
    def choices(self) -> tuple[str, ...]:
        """The names of the variants of all images; empty if there is one variant."""
        return tuple(str(name) for name in self.other("choices"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows."""
        return self.result.units if self.axis == "unit" else self.other("rows")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the rows, if they are units."""
        return self.result.kinds or ("",) * len(self.result.units)

    @property
    def about_rows(self) -> list[tuple[str, ...]]:
        """The name of each row, and for units the kind."""
        kinds = [self.kinds] if self.axis == "unit" else []
        return list(zip(self.names, *kinds, strict=True))

    def named(self, axis: int) -> list[str]:
        """Names along the first (0) or the last (−1) axis; numbers if there are no names."""
        names = self.other("points" if axis else "rows")
        if not len(names) and self.about["axes"][axis] == "unit":
            names = self.result.units
        names = names if len(names) else range(self.values.shape[axis])
        return [str(name) for name in names]

    def borders(self, axis: int) -> tuple[int, ...]:
        """Indices along an axis at which a new group begins."""
        groups = self.other("column_groups" if axis else "row_groups")
        if not len(groups) and self.about["axes"][axis] == "unit":
            groups = self.result.stages
        return tuple(i for i in range(1, len(groups)) if groups[i] != groups[i - 1])

    @property
    def colours(self) -> dict[str, Any]:
        """The mapping from values to colours."""
        limits = self.about.get("limits")
        return {
            "diverging": self.about.get("colours") == "diverging",
            "limits": (float(limits[0]), float(limits[1])) if limits else None,
        }

    @property
    def log(self) -> bool:
        """Whether the y axis is logarithmic."""
        return bool(self.about.get("log"))

    @property
    def drawn(self) -> np.ndarray:
        """The values as they are drawn: NaN, a gap, where a logarithmic axis has no place."""
        return np.where(self.values > 0, self.values, np.nan) if self.log else self.values

    @property
    def x_label(self) -> str:
        """The label of the x axis: the last axis with its unit; for a path, its coordinates."""
        last, unit = self.about["axes"][-1], self.unit_of("x")
        if self.about.get("points") and self.about["x"]:
            return unit or self.about["x"].replace("_", " ")
        return f"{last} ({unit})" if unit else last
