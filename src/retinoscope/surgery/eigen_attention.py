"""Attention that provably smooths, or provably does not, for any transformer.

Dovonon et al., 2024, "Setting the Record Straight on Transformer Oversmoothing", arXiv:2401.04301.
The value and output maps of each attention become V and Λ Vᵀ with V the orthogonal factor of a
matrix Θ and Λ = ±diag(ψ²), so that the eigenvalues of their product are all ≥ 0 (ViT⁺) or all ≤ 0
(ViT⁻), whatever Θ and ψ are. Queries, keys and everything else stay unchanged, including their
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.settings import REQUIRED, check, setting
from retinoscope.core.unit import Kind, Unit

if TYPE_CHECKING:
    from torch import fx, nn

    from retinoscope.anatomy.attentions import Attention
    from retinoscope.anatomy.channels import Channels
    from retinoscope.anatomy.sites import LearnedMap
    from retinoscope.surgery.table import Table


@dataclass(frozen=True)
class EigenAttention:
    """Replace W_V W_proj of each attention so that its eigenvalues have one sign.

    The biases of values and output are dropped, as in the paper. If a map also computes queries and
    keys, that part is kept as ``kept_weight`` and ``kept_bias``. The new weights Θ and ψ are stored
    next to it in ``values``, and the output map refers to them.
    """

    example_model: ClassVar[str] = "micro_vit"

    sign: Literal["+", "-"] = setting(
        REQUIRED, "+ for eigenvalues ≥ 0, which smooth; - for eigenvalues ≤ 0.", example="+"
    )
    form: Literal["symmetric", "authors"] = setting(
        "symmetric", "V Λ Vᵀ, or the order of factors in the authors' code."
    )

    def __post_init__(self) -> None:
        check(self, "eigen_attention")

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` with these maps; ``model`` itself is not modified."""
        from retinoscope.anatomy.attentions import attentions
        from retinoscope.layers.eigen_linear import EigenOutputLinear, EigenValueLinear
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "eigen_attention")
        found = table.sites.dissection
        pairs = [
            _pair(table, unit, attention)
            for unit in table.units((Kind.ATTENTION,))
            for attention in attentions(found, table.sites.piece(unit).nodes) or [None]
        ]
        for pair in pairs:
            values = EigenValueLinear(pair.values, pair.rows, self.sign, self.form)
            table.replace(pair.values_path, values)
            table.replace(pair.output_path, EigenOutputLinear(values.values))
        return table.patient


class _Pair(NamedTuple):
    """The value and output maps of one attention."""

    values_path: str
    values: nn.Linear
    output_path: str
    rows: tuple[int, ...]
    """The output of the first map that reaches each input of the second through the attention."""


def _pair(table: Table, unit: Unit, attention: Attention | None) -> _Pair:
    """The value and output maps of an attention; raises if there are no suitable ones."""
    from retinoscope.anatomy.value_path import Unclear, ends_of_values, tracked_values

    found = table.sites.dissection
    try:
        made, taken = ends_of_values(found, attention)
        assert attention is not None  # otherwise the ends are unclear
        before, values = _linear(table, unit, made, "its values are computed by")
        behind, output = _linear(table, unit, taken, "its mixed values go into")
        channels, rows = tracked_values(found, attention, made, behind.entry)
    except Unclear as reason:
        raise table.refusal(str(reason), unit) from None
    widths = (values.in_features, len(set(rows)), output.in_features, output.out_features)
    if len(set(widths)) > 1:
        raise table.refusal(
            "W_V W_proj has eigenvalues only if it is square, but {} channels become {} values, "
            "and {} become {}".format(*widths),
            unit,
        )
    _check_alone(table, unit, attention, channels, rows)
    return _Pair(before.module, values, behind.module, rows)


def _linear(table: Table, unit: Unit, node: fx.Node, what: str) -> tuple[LearnedMap, nn.Linear]:
    """The linear map at a node; raises if it is not a plain ``nn.Linear``."""
    from torch import nn

    from retinoscope.anatomy.graph.flow import operation

    if operation(node) != "linear":
        raise table.refusal(f"{what} {operation(node)}, not a linear map", unit)
    found = table.sites.as_map(node)
    module = table.module(found.module) if found else None
    # A weight that is computed, as by weight norm, is not a parameter.
    if (
        found is None
        or not isinstance(module, nn.Linear)
        or type(module).forward is not nn.Linear.forward
        or "weight" not in module._parameters
    ):
        raise table.refusal(f"{what} a linear map that is not a separate nn.Linear", unit)
    return found, module


def _check_alone(
    table: Table, unit: Unit, attention: Attention, channels: Channels, rows: tuple[int, ...]
) -> None:
    """Raise if values are also read by something else, such as keys that share their tensor."""
    from torch import fx

    from retinoscope.anatomy.graph.flow import operation

    for reader, node in channels.readers():
        places: list[fx.Node] = []
        fx.map_arg((reader.args, reader.kwargs), places.append)
        once = places.count(node) == 1
        if reader is attention.node and node is attention.values and once:
            continue
        if set(channels.at(node).flatten().tolist()) & set(rows):
            raise table.refusal(f"its values are also used by {operation(reader)}", unit)
