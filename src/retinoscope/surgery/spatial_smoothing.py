"""Adds a blur at the end of each stage, which averages neighbouring points like an ensemble.

From Park & Kim, "Blurs Behave Like Ensembles: Spatial Smoothings to Improve Accuracy, Uncertainty,
and Robustness" (ICML 2022, arXiv:2105.12639): before each sub-sampling and before the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.settings import check, setting
from retinoscope.core.unit import Kind, Unit

if TYPE_CHECKING:
    from torch import nn

    from retinoscope.surgery.table import Table

_MAPS = {"NCHW", "NHWC"}


@dataclass(frozen=True)
class SpatialSmoothing:
    """Bound and blur the maps after the last unit of each stage.

    The stem is not a stage. A stage of only pooling units (as at the end of VGG) is skipped unless
    it is named.
    """

    kernel: int = setting(2, "Side of the square to average over; 1 does not blur.", at_least=1)
    padding: Literal["replicate", "grow"] = setting(
        "replicate",
        "replicate keeps the size; grow, as in the authors' code, pads with zeros and enlarges "
        "maps by one if the kernel is even.",
    )
    prob: Literal["tanh", "bn_tanh", "sigmoid", "softmax", "clamp", "scale", "off"] = setting(
        "tanh", "How values are bounded before the blur."
    )
    tau: float | None = setting(
        None, "Value at which prob saturates. Default: that of the paper (10 for tanh).", above=0
    )
    stages: tuple[int, ...] = setting((), "Stages to smooth, counted from 1. Default: all.")

    def __post_init__(self) -> None:
        check(self, "spatial_smoothing")

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` that smooths; ``model`` itself is not modified."""
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "spatial_smoothing")
        for unit in self._ends(table):
            self._smooth(table, unit)
        if self.padding == "grow":
            self._check_sizes(table)
        return table.patient

    def _ends(self, table: Table) -> list[Unit]:
        """The last unit of each stage to smooth."""
        last = {unit.stage: unit for unit in table.whole if unit.stage is not None}
        held = {stage: unit for stage, unit in last.items() if unit.name in table.names}
        if missing := [stage for stage in self.stages if stage not in held]:
            stages = ", ".join(map(str, held)) or "none"
            raise table.refusal(f"it has no stage {missing[0]} to smooth. Stages: {stages}")
        working = {u.stage for u in table.whole if u.kind is not Kind.POOL}
        chosen = self.stages or [stage for stage in held if stage in working]
        if not chosen:
            raise table.refusal(f"it has no stage to smooth. It has: {table.anatomy.summary()}")
        return [held[stage] for stage in sorted(set(chosen))]

    def _smooth(self, table: Table, unit: Unit) -> None:
        from retinoscope.anatomy.layout import lens
        from retinoscope.layers.attention_block import ChannelsLast
        from retinoscope.layers.smoothing import Smooth

        smooth = Smooth(self.kernel, self.padding, self.prob, self.tau, unit.channels)
        sites, layouts = table.sites, []
        # The state may already be flattened for the head, or a later operation may reshape it to
        # maps again.
        for state in sites.onward(sites.origin(sites.piece(unit).exit)):
            view = lens(sites.dissection.meaning[state].axes)
            layouts.append(view.grid.layout if view and not view.grid.prefix else "tokens")
            if layouts[-1] in _MAPS and (places := sites.places(state)):
                table.catch(places, smooth if layouts[-1] == "NCHW" else ChannelsLast(smooth))
                return
        if _MAPS & set(layouts):
            raise table.refusal("no module outputs or takes the state after it", unit)
        raise table.refusal(
            f"the state after it is stored as {layouts[0]}, but a blur needs maps (N, C, H, W) or "
            "(N, H, W, C). Select the stages to smooth with stages=…",
            unit,
        )

    def _check_sizes(self, table: Table) -> None:
        """Raise if the following layers do not accept the larger maps."""
        from retinoscope.anatomy.example import as_batch
        from retinoscope.anatomy.graph.rest import at_rest
        from retinoscope.core.errors import first_line

        image = as_batch(table.patient, table.anatomy.image[1:])
        try:
            with at_rest(table.patient):
                table.patient(image)
        except Exception as error:
            raise table.refusal(
                "with padding='grow' maps become larger than the following layers accept "
                f"({first_line(error)}) Use padding='replicate', which keeps their size"
            ) from error
