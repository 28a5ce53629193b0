"""Averages that do not depend on how the work was split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mean:
    """A mean over observations that can be merged with others and knows its standard error.

    Merges by Chan, Golub & LeVeque (1983), which is as accurate as two passes over all data.

    Example:
        >>> merged = Mean.merge([Mean.of(np.array([[1.0], [2.0]])), Mean.of(np.array([[6.0]]))])
        >>> merged.value, merged.count
        (array([3.]), 3)
    """

    count: int
    value: np.ndarray
    squares: np.ndarray
    """Sum of squared deviations from the mean."""

    @classmethod
    def of(cls, observations: np.ndarray) -> Mean:
        """The mean over the first axis of ``observations``, in double precision."""
        rows = np.asarray(observations, dtype=np.float64)
        if not len(rows):
            return cls(0, np.zeros(rows.shape[1:]), np.zeros(rows.shape[1:]))
        value = rows.mean(0)
        return cls(len(rows), value, np.square(rows - value).sum(0))

    @classmethod
    def merge(cls, parts: Iterable[Mean]) -> Mean:
        """The mean of all observations of ``parts``, weighted by their counts."""
        merged: Mean | None = None
        for part in parts:
            merged = part if merged is None else merged + part
        if merged is None:
            raise ValueError("There is nothing to merge.")
        return merged

    def __add__(self, other: Mean) -> Mean:
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        apart = other.value - self.value
        return Mean(
            count,
            self.value + apart * (other.count / count),
            self.squares + other.squares + np.square(apart) * (self.count * other.count / count),
        )

    @property
    def error(self) -> np.ndarray:
        """The standard error of the mean; NaN for fewer than two observations."""
        if self.count < 2:
            return np.full(self.value.shape, np.nan)
        return np.sqrt(self.squares / (self.count - 1) / self.count)

    def to_arrays(self, name: str) -> dict[str, np.ndarray]:
        """As arrays for a file, with names that start with ``name``."""
        return {
            f"{name}.count": np.array(self.count, dtype=np.int64),
            f"{name}.value": self.value,
            f"{name}.squares": self.squares,
        }

    @classmethod
    def merge_arrays(cls, parts: Iterable[Mapping[str, np.ndarray]], name: str) -> Mean:
        """The merged mean of all parts that contain one of that name."""
        return cls.merge(cls.from_arrays(part, name) for part in parts if f"{name}.count" in part)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], name: str) -> Mean:
        """Read the output of :meth:`to_arrays`."""
        count, value, squares = (arrays[f"{name}.{part}"] for part in ("count", "value", "squares"))
        return cls(int(count), value, squares)
