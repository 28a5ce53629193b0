"""Reads the anatomy of any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import fx, nn

from retinoscope.anatomy.axes import roles_of, size_of
from retinoscope.anatomy.example import Example, as_batch
from retinoscope.anatomy.graph.export import Graph, export
from retinoscope.anatomy.graph.flow import Flow, ancestors, operation
from retinoscope.anatomy.layout import Lens, lens
from retinoscope.anatomy.reading.facts import Fact
from retinoscope.anatomy.reading.meaning import meanings
from retinoscope.anatomy.reading.reader import Meaning
from retinoscope.anatomy.record import recall, remember
from retinoscope.anatomy.units.cost import flops, parameters
from retinoscope.anatomy.units.cut import Cutter, Piece
from retinoscope.anatomy.units.kinds import deciding, kind_of
from retinoscope.anatomy.units.names import Unique, output_module, unit_name
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import NotABackbone
from retinoscope.core.unit import Kind, Unit

_CHANNEL_NORMS = {"layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"}
_NO_UNIT = {Kind.STEM, Kind.HEAD}
_MERGED = 6
"""Number of convolutions from which a block without a skip is called merged; a bottleneck has 4."""


@dataclass
class Dissection:
    """An anatomy together with the graph it was read from, as used by replay."""

    anatomy: Anatomy
    flow: Flow
    pieces: dict[str, Piece]
    """The part of the graph that belongs to each unit, including inner units."""
    lenses: dict[str, Lens | None]
    """How to view the state after each unit as maps."""
    meaning: dict[fx.Node, Meaning]
    """The meaning of the dimensions of every tensor that depends on the image."""
    facts: dict[fx.Node, set[Fact]]
    """What each of these operations does."""

    def moves(self, node: fx.Node) -> bool:
        """Whether an operation only moves or selects entries of one tensor."""
        return self.facts[node] == {Fact.LAYOUT} and len(self.flow.inputs(node)) == 1

    def ends_in_norm(self, unit: str) -> bool:
        """Whether a unit ends with a norm over channels, after which no position stands out."""
        node = self.pieces[unit].exit
        while node in self.facts and (self.moves(node) or operation(node) == "dropout"):
            (node,) = self.flow.inputs(node)
        if operation(node) not in _CHANNEL_NORMS:
            return False
        return roles_of(self.meaning[node].axes[-1]) == {"c"}


def dissect(
    model: nn.Module, example: Example = 224, *, output: str | None = None, name: str | None = None
) -> Anatomy:
    """Split a backbone into units, using only its computation graph.

    Args:
        model: Any module that maps a batch of images to logits; it is not modified.
        example: A batch (N, C, H, W), or an image size: a number, or (height, width).
        output: The entry of a dict or tuple output with the logits. Default: detected.
        name: The name of the model. Default: the name of its class.
    """
    return take_apart(model, example, output=output, name=name).anatomy


def take_apart(
    model: nn.Module,
    example: Example = 224,
    *,
    output: str | None = None,
    name: str | None = None,
    images: int = 2,
    before: nn.Module | None = None,
) -> Dissection:
    """The anatomy of ``model``, with the parts of the graph that it describes.

    ``images`` is the number of images for the export; it only matters for models whose code depends
    on it. ``before`` is applied to the images first and belongs to the first unit.
    """
    graph = export(model, example, output, images, before)
    found = read_graph(graph, name or type(model).__name__)
    if output is None and before is None and images == 2:
        remember(model, found)
    return found


def known_or_taken_apart(model: nn.Module, example: Example, name: str | None = None) -> Dissection:
    """As :func:`take_apart`, but reuses the latest dissection of this model if still valid."""
    called = name or type(model).__name__
    image = tuple(as_batch(model, example, 1).shape[1:])
    return recall(model, image, called) or take_apart(model, example, name=called)


def read_graph(graph: Graph, name: str) -> Dissection:
    """The dissection of a graph."""
    _, channels, height, width = Flow(graph).shape(graph.image)
    anatomist = _Anatomist(graph)
    units = anatomist.units()
    anatomy = Anatomy(name, units, (channels, height, width))
    return Dissection(
        anatomy,
        anatomist.flow,
        anatomist.pieces,
        anatomist.lenses,
        anatomist.meaning,
        anatomist.facts,
    )


@dataclass
class _Anatomist:
    """Turns pieces of a graph into units."""

    graph: Graph
    flow: Flow = field(init=False)
    meaning: dict[fx.Node, Meaning] = field(init=False)
    facts: dict[fx.Node, set[Fact]] = field(init=False)
    pieces: dict[str, Piece] = field(default_factory=dict)
    lenses: dict[str, Lens | None] = field(default_factory=dict)
    unique: Unique = field(default_factory=Unique)
    counted: set[int] = field(default_factory=set)
    views: dict[fx.Node, Lens | None] = field(default_factory=dict)
    """How to view each state as maps."""
    live: dict[fx.Node, tuple[str, ...]] = field(default_factory=dict)
    """Module paths of the operations that the logits are computed from."""

    def __post_init__(self) -> None:
        self.flow = Flow(self.graph)
        if self.graph.logits not in self.flow.dependent:
            raise NotABackbone(
                "The model's output does not depend on the image. Check that its forward uses its "
                "input."
            )
        self.meaning, self.facts = meanings(self.flow)
        self.views = {node: lens(meaning.axes) for node, meaning in self.meaning.items()}
        live = set(ancestors(self.flow, self.graph.logits, set()))
        self.live = {node: self.graph.paths[node] for node in self.flow.dependent if node in live}

    def units(self) -> tuple[Unit, ...]:
        """The model's units from stem to head."""
        widths = {node: view.channels for node, view in self.views.items() if view}
        pieces = Cutter(self.flow, self.facts, widths).pieces(self.graph.image, self.graph.logits)
        if not pieces:
            raise NotABackbone(
                "The model's output is its input: there is no operation between them."
            )
        parts = _assign(pieces, [self._has_positions(piece) for piece in pieces])
        return self._in_stages(
            [self._unit(piece, kind, depth) for depth, (piece, kind) in enumerate(parts)]
        )

    def _unit(
        self, piece: Piece, kind: Kind | None, depth: int, counted: set[int] | None = None
    ) -> Unit:
        step = piece.residual
        kind = kind or kind_of(piece.facts)
        name = self.unique(
            unit_name(deciding(kind, piece.nodes, self.facts), self.graph.paths, str(kind))
        )
        view = self.views[piece.exit]
        self.pieces[name], self.lenses[name] = piece, view
        before = set(self.counted if counted is None else counted)
        return Unit(
            name=name,
            kind=kind,
            stage=None,
            depth=depth,
            residual=step is not None and kind not in _NO_UNIT,
            subsamples=self._positions(piece.exit) < self._positions(piece.entry)
            and view is not None,
            grid=view.grid if view else None,
            channels=self._channels(piece.exit),
            flops=sum(flops(self.flow, node) for node in piece.nodes) // (self.graph.batch or 1),
            module=self._module(piece),
            inner=tuple(
                self._unit(part, None, index, before) for index, part in enumerate(piece.inner)
            ),
            parameters=parameters(
                self.flow, piece.nodes, self.counted if counted is None else counted
            ),
            note=self._note(piece),
        )

    def _module(self, piece: Piece) -> str | None:
        step = piece.residual
        if step is None or step.skip is None:
            return output_module(piece.exit, set(piece.nodes), None, self.live)
        branch, *more = step.skip.branches
        # One of several branches would not be everything that the unit adds.
        return None if more else output_module(branch, set(piece.nodes), step.exit, self.live)

    def _note(self, piece: Piece) -> str:
        """What the graph could not separate, and why."""
        skip = piece.residual.skip if piece.residual else None
        if skip and len(skip.branches) > 1:
            return f"merged: {len(skip.branches)} parallel branches are added at once"
        if not piece.block or piece.inner:
            return ""
        for fact, called, enough in (
            (Fact.ATTENTION, "attentions", 2),
            (Fact.CONV, "convolutions", _MERGED),
        ):
            places = {self.graph.paths[node] for node in piece.nodes if fact in self.facts[node]}
            if len(places) >= enough:
                return f"merged: {len(places)} {called} with paths around each of them"
        return ""

    def _has_positions(self, piece: Piece) -> bool:
        """Whether the state of the piece has, or may have, positions, after a block."""
        axes = self.meaning[piece.exit].axes
        known = {"n", "c", "p", "b"}
        unclear = any(size_of(d) > 1 and not roles_of(d) & known for d in axes)
        return self.views[piece.exit] is not None or (piece.block and unclear)

    def _positions(self, node: fx.Node) -> int:
        view = self.views[node]
        return view.grid.height * view.grid.width if view else 0

    def _channels(self, node: fx.Node) -> int:
        if view := self.views[node]:
            return view.channels
        axes = self.meaning[node].axes
        channels = [size_of(d) for d in axes if "c" in roles_of(d)]
        return channels[0] if channels else size_of(axes[-1]) if axes else 1

    def _in_stages(self, units: Sequence[Unit]) -> tuple[Unit, ...]:
        """Number the stages: a new one begins when the resolution changes."""
        staged, stage, before = [], 1, None
        for unit in units:
            if unit.kind not in _NO_UNIT:
                now = unit.grid.resolution if unit.grid else before
                stage += before is not None and now != before
                before = now
                unit = _with_stage(unit, stage)
            staged.append(unit)
        return tuple(staged)


def _with_stage(unit: Unit, stage: int) -> Unit:
    return replace(
        unit, stage=stage, inner=tuple(_with_stage(inner, stage) for inner in unit.inner)
    )


def _assign(pieces: Sequence[Piece], positioned: Sequence[bool]) -> list[tuple[Piece, Kind | None]]:
    """Join the pieces of the stem and of the head; the others are the body.

    The body starts at the first block or bottleneck after the first piece; in a plain chain (VGG),
    directly after the first piece. The head starts after the last state with positions.
    """
    end = max((index + 1 for index, has in enumerate(positioned) if has), default=0)
    if not end:  # paths that only meet at the logits (CrossViT): everything is one body
        return [(piece, None) for piece in pieces]
    starts = [index for index in range(1, end) if _starts_body(pieces[index])]
    start = starts[0] if starts else min(1, end)
    parts: list[tuple[Piece, Kind | None]] = []
    if start:
        parts.append((_joined(pieces[:start]), Kind.STEM))
    parts += [(piece, None) for piece in pieces[start:end]]
    if end < len(pieces):
        parts.append((_joined(pieces[end:]), Kind.HEAD))
    return parts


def _starts_body(piece: Piece) -> bool:
    return (
        piece.block
        or sum(step.work for step in piece.steps) > 1
        or any(s.gate for s in piece.steps)
    )


def _joined(pieces: Sequence[Piece]) -> Piece:
    return Piece([step for piece in pieces for step in piece.steps])
