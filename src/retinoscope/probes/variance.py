"""How much feature maps vary over positions (Park & Kim, 2022, arXiv:2202.06709, fig. 9).

The unbiased variance over the positions of each map, averaged over channels and images. The paper
finds that attention lowers it (it averages) and that convolutions and MLPs raise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Claim, covered, measured_in
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.sight import Group, Sight

if TYPE_CHECKING:
    from torch import Tensor


@answer
class VarianceResult(Result):
    """``variance[u]`` after unit u; a step is this minus the variance of the unit's input."""

    probe: ClassVar[str] = "variance"
    schema: ClassVar[int] = 1

    images: int
    variance: np.ndarray = axes(
        "unit", unit="feature-map variance", error="variance_error",
        title="Variance over positions after each unit, by depth",
    )  # fmt: skip
    variance_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    step: np.ndarray = axes(
        "unit", unit="variance, output − input", error="step_error",
        title="Change of the variance by each unit: below 0 it averages", changes="the variance",
        claim=Claim("Park & Kim (2022)", lowers=("attention",), raises=("conv", "mlp")),
    )  # fmt: skip
    step_error: np.ndarray = axes("unit", unit="standard error", figure=False)


@dataclass(frozen=True)
class Variance:
    """Variance of feature maps over positions after every unit."""

    result: ClassVar[type[Result]] = VarianceResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Which units average feature maps, and which make them vary more?"
    reading: ClassVar[str] = (
        "If a unit's point is lower than the previous one, the unit has averaged its maps. Park & "
        "Kim (2022) find that attention lowers the variance, that convolutions and MLPs raise it, "
        "and that it peaks at the end of each stage, where they say attention helps most."
    )

    @property
    def needs(self) -> Needs:
        """Images, with or without labels."""
        return Needs()

    def watch(self, sight: Sight) -> Tensor:
        """Each image's variance (N,)."""
        from retinoscope.numerics.spread import spatial_variance

        return spatial_variance(sight.maps)

    def gather(self, group: Group) -> Partial:
        """The means of each unit's variance and step over the images of a group."""
        from retinoscope.numerics.running import Mean

        partial: dict[str, Any] = {}
        before: Any = None
        for unit in group.anatomy:
            now = group.rows.get(unit.name)
            if now is not None:
                step = now - (float("nan") if before is None else before)
                partial |= Mean.of(now).to_arrays(f"{unit.name}/level")
                partial |= Mean.of(step).to_arrays(f"{unit.name}/step")
            before = now
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> VarianceResult:
        """Means over all images."""
        from retinoscope.numerics.running import Mean

        measured = [unit.name for unit in measured_in(anatomy, partials)]
        level, step = (
            [Mean.merge_arrays(partials, f"{name}/{what}") for name in measured]
            for what in ("level", "step")
        )
        return VarianceResult(
            coverage=covered(anatomy, measured),
            images=max((mean.count for mean in level), default=0),
            variance=np.array([mean.value for mean in level]),
            variance_error=np.array([mean.error for mean in level]),
            step=np.array([mean.value for mean in step]),
            step_error=np.array([mean.error for mean in step]),
        )
