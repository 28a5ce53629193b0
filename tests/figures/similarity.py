"""A result with a matrix and images, as a probe of a user's own might declare it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from retinoscope.core.result import Result, answer, axes


@answer
class SimilarityResult(Result):
    """``cka[u, v]``: unit u of this model and unit v of another."""

    probe: ClassVar[str] = "similarity"

    other_units: tuple[str, ...]
    other_stages: tuple[int, ...]
    heads: tuple[str, ...]
    cka: np.ndarray = axes(
        "unit", "unit of the other", unit="CKA", draw="matrix", points="other_units",
        column_groups="other_stages", limits=(0.0, 1.0), title="Which units are alike",
    )  # fmt: skip
    difference: np.ndarray = axes(
        "unit", "unit", unit="difference", draw="matrix", colours="diverging",
        title="What training changed",
    )  # fmt: skip
    weights: np.ndarray = axes(
        "head", "height", "width", unit="attention", draw="images", rows="heads",
        title="Where each head looks",
    )  # fmt: skip
    photos: np.ndarray = axes(
        "photo", "high", "wide", "channel", draw="images", title="What they look at"
    )

    def findings(self) -> list[str]:
        """The largest similarity."""
        return [f"the two most similar units have a CKA of {self.cka.max():.2f}"]
