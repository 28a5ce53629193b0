"""The build-up rule on any staged CNN (Park & Kim, 2022, arXiv:2202.06709, section 4.1).

Every second convolutional unit from the end of a stage is replaced by an attention unit. A unit
that subsamples or changes the width stays a convolution, so every stage begins with one. The paper
adds a fourth block to the last stage of ResNet-50, so that two attention units fit; ``grow`` does
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.settings import REQUIRED, check, refuse, setting
from retinoscope.core.unit import Kind, Unit

if TYPE_CHECKING:
    from torch import nn

    from retinoscope.surgery.table import Table

_MAPS = ("NCHW", "NHWC")


class Slot(NamedTuple):
    """A possible position of an attention unit: replacing a unit, or after it."""

    unit: Unit
    behind: bool = False


def slots(anatomy: Anatomy, stage: int, grow: bool = False) -> list[Slot]:
    """The possible positions of attention in a stage, from its end; no two are adjacent.

    With ``grow``, the first one is a new unit after the last convolutional unit.
    """
    found: list[Slot] = []
    units = list(anatomy.units)
    places = [place for place, unit in enumerate(units) if unit.stage == stage]
    taken = {place for place in places if units[place].kind is Kind.ATTENTION}
    convolutions = [place for place in places if units[place].kind is Kind.CONV]
    for place in reversed(convolutions):
        if grow and not found:
            if _has_maps(units[place]):
                found.append(Slot(units[place], behind=True))
                taken.add(place + 1)
            continue
        if place + 1 not in taken and place - 1 not in taken and _keeps_shape(units, place):
            found.append(Slot(units[place]))
            taken.add(place)
    return found


def _keeps_shape(units: list[Unit], place: int) -> bool:
    if not place or not _has_maps(units[place]):
        return False
    unit, before = units[place], units[place - 1]
    same = before.grid is not None and unit.grid is not None and (
        before.grid.resolution == unit.grid.resolution
    )  # fmt: skip
    return same and before.channels == unit.channels


def _has_maps(unit: Unit) -> bool:
    return unit.grid is not None and unit.grid.layout in _MAPS and not unit.grid.prefix


@dataclass(frozen=True)
class BuildUp:
    """Replace convolutional units by attention, alternately from the end of each stage."""

    msa_per_stage: tuple[int, ...] = setting(
        REQUIRED,
        "Number of attention units in each stage, such as (0, 1, 1, 2).",
        at_least=0,
        example=(0, 0, 0, 1),
    )
    head_width: int = setting(
        64, "Channels per head; with 32, the cost is similar to that of a convolution.", at_least=1
    )
    heads: tuple[int, ...] = setting(
        (), "Heads per stage. Default: chosen by width (3, 6, 12, 24 in ResNets).", at_least=1
    )
    window: int | None = setting(
        None, "Side of the attention windows. Default: 7 or 4, whichever fits the map.", at_least=1
    )
    reduction: int | None = setting(
        None,
        "Channel reduction before attention. Default: 1 or 4, whichever is closer in cost.",
        at_least=1,
    )
    tables: Literal["per_head", "shared"] = setting(
        "per_head", "Position biases per head, or shared by all heads."
    )
    grow: bool = setting(
        False, "Add a unit to a stage if alternation leaves no room for the last attention unit."
    )

    def __post_init__(self) -> None:
        check(self, "build_up")
        stages = len(self.msa_per_stage)
        refuse(
            "build_up",
            (
                "msa_per_stage needs one number per stage, 0 or more, at least one of them not 0; "
                f"got {self.msa_per_stage}", any(self.msa_per_stage)),
            (f"heads needs one number for each of {stages} stages; got {self.heads}",
             len(self.heads) in (0, stages)),
        )  # fmt: skip

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` with attention; ``model`` itself is not modified."""
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "build_up")
        for slot in self.plan(table):
            self._put(table, slot)
        return table.patient

    def plan(self, table: Table) -> list[Slot]:
        """The positions of attention units, the last one first; raises if they do not fit."""
        table.units((Kind.CONV,))
        stages = table.whole.stages
        if len(stages) != len(self.msa_per_stage):
            raise table.refusal(
                f"it has {len(stages)} stages ({table.whole.sketch}), but msa_per_stage has "
                f"{len(self.msa_per_stage)} numbers"
            )
        planned: list[Slot] = []
        for stage, asked in zip(stages, self.msa_per_stage, strict=True):
            found = self._slots(table, stage)
            if asked > len(found) and self.grow:
                found = self._slots(table, stage, grow=True)
            if asked > len(found):
                longer = len(self._slots(table, stage, grow=True))
                hint = "" if longer < asked or self.grow else ", or set grow=True"
                raise table.refusal(
                    f"stage {stage} has room for {len(found)} of the {asked} requested attention "
                    "units: they alternate with convolutions, and units that subsample or change "
                    f"the width stay ({table.whole.sketch}). Request fewer{hint}"
                )
            planned += [slot for slot in found[:asked] if self._reached(table, slot)]
        return planned

    def _slots(self, table: Table, stage: int, grow: bool = False) -> list[Slot]:
        """The possible positions in units that may be operated on."""
        found = slots(table.whole, stage, grow)
        return [slot for slot in found if slot.unit.name in table.names]

    def _reached(self, table: Table, slot: Slot) -> bool:
        if slot.behind and not table.sites.giving(slot.unit):
            raise table.refusal("no module outputs or takes the state after it", slot.unit)
        if not slot.behind and not table.sites.whole(slot.unit):
            raise table.refusal(
                "its work is not done by one module, or by several modules in sequence, so there "
                "is nothing to replace by attention"
                + ". An earlier surgery has added parts there: apply build_up first"
                * table.operated,
                slot.unit,
            )
        return True

    def _put(self, table: Table, slot: Slot) -> None:
        if slot.behind:
            block = self._block(table, slot.unit)
            table.catch(table.sites.giving(slot.unit), block)
            return
        from torch import nn

        first, *rest = table.sites.whole(slot.unit)
        table.replace(first, self._block(table, slot.unit))
        for path in rest:
            table.replace(path, nn.Identity())

    def _block(self, table: Table, unit: Unit) -> nn.Module:
        """An attention unit with the same input and output shape as ``unit``."""
        import torch

        from retinoscope.layers.attention_block import AttentionBlock, ChannelsLast

        assert unit.grid is not None  # a slot has maps
        drop_path, side = _stochastic_depth(table, unit), min(unit.grid.resolution)
        fitting = [p for p in (7, 4) if all(size % p == 0 for size in unit.grid.resolution)]
        window = self.window or min(fitting[0] if fitting else 7, side)

        def make(reduction: int) -> AttentionBlock:
            width = unit.channels // reduction
            given = self.heads[unit.stage - 1] if self.heads else 0  # type: ignore[operator]
            heads = given or max(1, round(3 * width / 64))
            return AttentionBlock(
                unit.channels, reduction, heads, self.head_width, window, self.tables, drop_path
            )

        reduction = self.reduction
        if reduction is None:
            with torch.device("meta"):
                cost = {
                    r: sum(p.numel() for p in make(r).parameters())
                    for r in (1, 4)
                    if unit.channels % r == 0
                }
            reduction = min(cost, key=lambda r: abs(cost[r] - unit.parameters))
        if unit.channels % reduction:
            raise table.refusal(
                f"reduction {reduction} does not divide its {unit.channels} channels", unit
            )
        block = make(reduction)
        return ChannelsLast(block) if unit.grid.layout == "NHWC" else block


def _stochastic_depth(table: Table, unit: Unit) -> float:
    """The drop rate of a unit's branch in training (stochastic depth)."""
    from timm.layers import DropPath
    from torchvision.ops import StochasticDepth

    rates = [0.0]
    for path in table.sites.whole(unit):
        for module in table.module(path).modules():
            if isinstance(module, DropPath):
                rates.append(float(module.drop_prob or 0.0))
            elif isinstance(module, StochasticDepth):
                rates.append(module.p)
    return max(rates)
