"""Uniform attention in every block: each token is averaged with the mean of all.

Context Broadcasting, from Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform
Attention" (ICCV 2023, arXiv:2210.08457), at the positions that the paper compares. With ``cb``, the
positions ``mid`` and ``end`` of an MLP are equivalent: a linear map with a bias commutes with an
average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.settings import check, setting
from retinoscope.core.unit import Kind, Unit

if TYPE_CHECKING:
    from torch import fx, nn

    from retinoscope.anatomy.sites import LearnedMap, Place, Storage
    from retinoscope.surgery.table import Table

_KINDS = {
    "mlp": (Kind.MLP,),
    "attention": (Kind.ATTENTION,),
    "both": (Kind.ATTENTION, Kind.MLP),
}
_NO_MODULE = "the learned map there is not a separate module"


@dataclass(frozen=True)
class ContextBroadcasting:
    """Add the mean of all tokens to every token, in each MLP or attention unit.

    A convolutional unit counts as an MLP if it has the role of one: it directly follows an
    attention unit of the same resolution, is residual, and consists of a linear map at each
    position, depth-wise convolutions, and another such map (PVTv2, SegFormer).
    """

    example_model: ClassVar[str] = "micro_vit"

    variant: Literal["cb", "cb_s", "gate", "hybrid"] = setting(
        "cb",
        "cb: average with the mean token; cb_s: add the mean times learned scales that start at "
        "0; gate: multiply by the class token plus 1; hybrid: sum of cb and the product with the "
        "class token.",
    )
    where: Literal["mlp", "attention", "both"] = setting("mlp", "The kinds of units to change.")
    position: Literal["front", "mid", "end"] = setting(
        "end",
        "Before the unit's first learned maps, before its last learned map, or after the unit.",
    )
    scale: float = setting(1.0, "Strength of the change; 0 changes nothing, 1 is the paper's.")

    def __post_init__(self) -> None:
        check(self, "context_broadcasting")

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` with broadcasting; ``model`` itself is not modified."""
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "context_broadcasting")
        units = [unit for kind in _KINDS[self.where] for unit in _units(table, kind)]
        for unit in units:
            self._broadcast(table, unit)
        if self._gates and not table.head_reads(slice(0, 1)):
            raise table.refusal(
                f"variant {self.variant!r} multiplies by the class token, but the head does not "
                "read the first token, so it is not a class token. Use variant cb or cb_s, which "
                "need no class token"
            )
        return table.patient

    @property
    def _gates(self) -> bool:
        return self.variant in ("gate", "hybrid")

    def _broadcast(self, table: Table, unit: Unit) -> None:
        """Insert one layer, or several that share their scales, into the unit."""
        from retinoscope.layers.broadcasting import Broadcast

        shared = None
        for places, storage, channels in self._spots(table, unit):
            if storage is None:
                raise table.refusal(
                    "its tokens have no separate dimension there (they are spread over the batch, "
                    "as in windows, or mixed with channels), so their mean cannot be computed",
                    unit,
                )
            if self._gates and not storage.before:
                raise table.refusal(
                    f"variant {self.variant!r} multiplies by the class token, but no token "
                    "precedes the grid there. Use variant cb or cb_s, which need no class token",
                    unit,
                )
            layer = Broadcast(
                self.variant, storage.positions, storage.channel, channels, self.scale
            )
            if shared is not None:
                layer.weight = shared
            elif self.variant == "cb_s":
                shared = layer.weight
            table.catch(places, layer)

    def _spots(
        self, table: Table, unit: Unit
    ) -> list[tuple[tuple[Place, ...], Storage | None, int]]:
        """Where a layer goes, how tokens are stored there, and their number of channels."""
        from retinoscope.anatomy.sites import Place

        learned = table.sites.learned_nodes(unit)
        if not learned:
            raise table.refusal("it has no learned map", unit)
        if unit.residual and not _in_turn(table, unit, learned[-1]):
            raise table.refusal("it has several parallel branches with learned maps", unit)
        if self.position == "end":
            return [_behind(table, unit, learned[-1])]
        mid = self.position == "mid"
        maps = [_map(table, unit, learned[-1])] if mid else _first(table, unit)
        return [
            (
                (Place(found.module, "before"),),
                found.takes,
                _channels(table, found.entry, found.takes),
            )
            for found in maps
        ]


def _units(table: Table, kind: Kind) -> list[Unit]:
    """The units of a kind that may be operated on, including convolutional units with that role."""
    if kind is not Kind.MLP:
        return table.units((kind,))
    chain = [unit for unit in table.whole.walk() if not unit.inner]
    before = {unit.name: chain[index - 1] for index, unit in enumerate(chain) if index}
    found = [
        unit
        for unit in table.units((Kind.MLP, Kind.CONV))
        if unit.kind is Kind.MLP or _stands_for_mlp(table, unit, before[unit.name])
    ]
    if not found:
        raise table.refusal(
            f"it has no mlp unit. It has: {table.anatomy.summary()}. A convolutional unit counts "
            "as one if it is residual, directly follows attention, and consists of a linear map, "
            "a depth-wise convolution and a linear map"
        )
    return found


def _stands_for_mlp(table: Table, unit: Unit, before: Unit) -> bool:
    from retinoscope.anatomy.reading.facts import Fact

    same = unit.grid and before.grid and unit.grid.resolution == before.grid.resolution
    nodes = table.sites.learned_nodes(unit)
    if not (unit.residual and same and before.kind is Kind.ATTENTION and len(nodes) > 2):
        return False
    facts = table.sites.dissection.facts
    linear = all(Fact.LINEAR in facts[node] for node in (nodes[0], nodes[-1]))
    return linear and all(_is_depthwise(table, node) for node in nodes[1:-1])


def _is_depthwise(table: Table, node: fx.Node) -> bool:
    from retinoscope.anatomy.graph.flow import arguments
    from retinoscope.anatomy.reading.facts import Fact

    weight = arguments(node).get("weight")
    if weight is None or Fact.CONV not in table.sites.dissection.facts[node]:
        return False
    return table.sites.flow.shape(weight)[1] == 1  # each kernel reads one channel


def _in_turn(table: Table, unit: Unit, last: fx.Node) -> bool:
    """Whether all learned maps of the unit come before the last one, not in parallel with it."""
    from retinoscope.anatomy.graph.flow import ancestors

    piece = table.sites.piece(unit)
    before = set(ancestors(table.sites.flow, last, {piece.entry}))
    return all(node in before for node in piece.nodes if table.sites.is_learned(node))


def _map(table: Table, unit: Unit, node: fx.Node) -> LearnedMap:
    found = table.sites.as_map(node)
    if found is None:
        raise table.refusal(_NO_MODULE, unit)
    return found


def _first(table: Table, unit: Unit) -> list[LearnedMap]:
    """The learned maps that no other learned map precedes; they must read the same tensor."""
    sites = table.sites
    behind: set[fx.Node] = set()
    first: list[fx.Node] = []
    for node in sites.piece(unit).nodes:
        follows = any(n in behind or n in first for n in sites.flow.inputs(node))
        if follows:
            behind.add(node)
        elif sites.is_learned(node):
            first.append(node)
    maps = [_map(table, unit, node) for node in first]
    if len({sites.origin(found.entry) for found in maps}) > 1:
        raise table.refusal("its first learned maps do not read the same tensor", unit)
    return maps


def _behind(
    table: Table, unit: Unit, node: fx.Node
) -> tuple[tuple[Place, ...], Storage | None, int]:
    """The position after a learned map, and after operations that only rearrange its output."""
    from retinoscope.anatomy.sites import Place

    sites = table.sites
    found = sites.as_map(node)
    if found and found.gives:
        place = Place(found.module, "after")
        return (place,), found.gives, _channels(table, node, found.gives)
    for moved in sites.onward(node):
        places, storage = sites.places(moved), sites.storage(moved)
        if places and storage:
            return places, storage, _channels(table, moved, storage)
    if found is None:
        raise table.refusal(_NO_MODULE, unit)
    return (), None, 0


def _channels(table: Table, node: fx.Node, storage: Storage | None) -> int:
    return table.sites.flow.shape(node)[storage.channel] if storage else 0
