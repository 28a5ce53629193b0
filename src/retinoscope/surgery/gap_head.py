"""A head that reads the mean of all patches instead of a class token.

With global average pooling, the loss of a ViT has fewer negative Hessian eigenvalues (Park & Kim,
"How Do Vision Transformers Work?", ICLR 2022, arXiv:2202.06709, fig. 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from retinoscope.core.anatomy import Anatomy

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class GapHead:
    """Replace the tokens that the head reads by the mean of the grid's tokens.

    This is applied to the state after the last unit, so that the head's own norm follows the mean.
    The class token still passes through the units; only the head no longer reads it.
    """

    example_model: ClassVar[str] = "micro_vit"

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` that pools; ``model`` itself is not modified."""
        from retinoscope.layers.broadcasting import MeanPrefix
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "gap_head")
        last = table.last
        if last.name not in table.names:
            raise table.refusal("the given anatomy lacks the last unit", last)
        if last.grid is None or not last.grid.prefix:
            raise table.refusal("there is no class token, so the head already pools")
        storage = table.sites.storage(table.sites.piece(last).exit)
        if storage is None:
            raise table.refusal("its tokens are spread over several dimensions", last)
        beside = storage.before + storage.behind
        grid = slice(storage.before, storage.before + last.grid.height * last.grid.width)
        if table.head_reads(grid):
            raise table.refusal(
                f"its head reads not only the {beside} tokens outside the grid but also the grid: "
                "it already pools, or attends again"
            )
        for state in table.sites.onward(table.sites.piece(last).exit):
            places, storage = table.sites.places(state), table.sites.storage(state)
            if places and storage:
                part = MeanPrefix(storage.positions[0], storage.before, storage.behind)
                table.catch(places, part)
                return table.patient
        raise table.refusal("no module outputs or takes the state after it", last)
