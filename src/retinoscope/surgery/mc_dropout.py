"""Dropout that stays active at test time (Gal & Ghahramani, 2016, arXiv:1506.02142).

Placed as in "Blurs Behave Like Ensembles" (Park & Kim, 2022, arXiv:2105.12639): before the last
learned map of every convolutional unit and every MLP; or after a unit that has only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.settings import check, setting
from retinoscope.core.unit import Kind

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class McDropout:
    """Drop entries before the last learned map of each unit, in training and in eval mode."""

    p: float = setting(0.3, "Fraction of entries to drop.", at_least=0, below=1)
    always: bool = setting(True, "Also drop in eval mode; False is ordinary dropout.")

    def __post_init__(self) -> None:
        check(self, "mc_dropout")

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` with dropout; ``model`` itself is not modified."""
        from retinoscope.layers.dropout import MonteCarloDropout
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "mc_dropout")
        for unit in table.units((Kind.CONV, Kind.MLP)):
            maps = table.learned(unit)
            dropout = MonteCarloDropout(self.p, self.always, unit.name)
            if len(maps) > 1:
                table.graft(maps[-1].module, dropout, "before")
            elif places := table.sites.giving(unit):
                table.catch(places, dropout)
            else:  # no module outputs or takes the state; before an activation works as well
                table.graft(maps[-1].module, dropout, "after")
        return table.patient

    def touched(self, model: nn.Module) -> list[str]:
        """The units of a changed model with dropout, in the order of its modules."""
        from retinoscope.layers.dropout import MonteCarloDropout

        found = [m.unit for m in model.modules() if isinstance(m, MonteCarloDropout) and m.unit]
        return list(dict.fromkeys(found))
