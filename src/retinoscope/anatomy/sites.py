"""Finds the modules of a model that correspond to its units, for use by surgeries.

The graph shows which operations a unit consists of, and which modules contain each operation. This
determines which module maps the unit's input to its output, which one outputs the state after it,
and which ones are its learned maps. Nothing is guessed: if no module corresponds, none is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

from torch import fx

from retinoscope.anatomy.axes import Axes, roles_of, size_of
from retinoscope.anatomy.dissect import Dissection
from retinoscope.anatomy.graph.export import Graph
from retinoscope.anatomy.graph.flow import Flow, ancestors
from retinoscope.anatomy.reading.facts import Fact
from retinoscope.anatomy.units.cut import Piece
from retinoscope.core.unit import Unit

LEARNED = {Fact.CONV, Fact.LINEAR, Fact.TOKEN_MIXING}


@dataclass(frozen=True)
class Storage:
    """The dimensions of positions and channels in a tensor of the model."""

    positions: tuple[int, ...]
    """The dimensions that contain only positions: rows, columns, tokens outside the grid."""
    channel: int
    before: int = 0
    """The number of tokens before the grid, along the only dimension of positions."""
    behind: int = 0


@dataclass(frozen=True)
class LearnedMap:
    """A convolution or linear map that is a separate module."""

    module: str
    node: fx.Node
    entry: fx.Node
    """The node that it is applied to."""
    takes: Storage | None
    """How its input is stored; None if an image's positions are spread over other dimensions."""
    gives: Storage | None


@dataclass(frozen=True)
class Place:
    """Where a state can be changed: after the module that outputs it, or before one taking it."""

    module: str
    side: Literal["before", "after"]


class Sites:
    """Finds the modules of a dissection's units, states and learned maps.

    Args:
        dissection: The dissection of the model.
        aliased: Paths of modules that the model contains under several names.
        grafted: Paths of modules to which parts were added.
    """

    def __init__(
        self, dissection: Dissection, aliased: Collection[str] = (), grafted: Collection[str] = ()
    ) -> None:
        self.dissection = dissection
        self.flow: Flow = dissection.flow
        graph = self.flow.source
        self._grafted = frozenset(grafted)
        self._shared = {*aliased, *_called_again(graph)}
        """Modules that occur several times; changing one would change several units, so they are
        not used."""
        live = set(ancestors(self.flow, graph.logits, set()))
        self._inside: dict[str, list[fx.Node]] = {}
        for node in self.flow.dependent:
            for path in graph.paths[node] if node in live else ():
                self._inside.setdefault(path, []).append(node)

    def piece(self, unit: Unit) -> Piece:
        """The part of the graph that belongs to a unit."""
        return self.dissection.pieces[unit.name]

    def paths(self, node: fx.Node) -> tuple[str, ...]:
        """The modules around an operation, outermost first."""
        return self.flow.source.paths[node]

    def storage(self, node: fx.Node) -> Storage | None:
        """How a tensor is stored; None if positions share a dimension with batch or channels."""
        return _storage(self.dissection.meaning[node].axes)

    def whole(self, unit: Unit) -> tuple[str, ...]:
        """The modules that, in sequence, map the unit's input to its output.

        Empty if some of its work is done outside of any such module.
        """
        piece = self.piece(unit)
        chain = self._chain(piece.nodes)
        if chain and not piece.block:  # a convolution with its norm and activation
            return chain
        inside = set(piece.nodes)
        work = {node for step in piece.steps if step.work for node in step.nodes}
        around = [
            path
            for path, nodes in self._inside.items()
            if work <= set(nodes) <= inside
            and path not in self._shared
            and self._input(path) is not None
        ]
        return (max(around, key=lambda path: path.count(".")),) if around else chain

    def _chain(self, nodes: Sequence[fx.Node]) -> tuple[str, ...]:
        """Consecutive modules that do all of ``nodes`` in order; empty if there are none."""
        within, chain = set(nodes), []
        for node in nodes:
            if any(node in self._inside[path] for path in chain):
                continue
            around = [path for path in self.paths(node) if path not in self._shared]
            covering = [path for path in around if within.issuperset(self._inside[path])]
            if not covering:
                return ()
            chain.append(covering[0])
        for first, second in pairwise(chain):
            if self._input(second) is not self._inside[first][-1]:
                return ()
        return tuple(chain) if chain and self._input(chain[0]) is not None else ()

    def _input(self, path: str) -> fx.Node | None:
        """The only tensor computed from the image that a module takes; None if it takes several."""
        inside = set(self._inside[path])
        taken = {n for node in inside for n in self.flow.inputs(node) if n not in inside}
        return taken.pop() if len(taken) == 1 else None

    def shape_given(self, path: str) -> tuple[int, ...]:
        """The shape of the tensor that a module returns, for two images."""
        return self.flow.shape(self._inside[path][-1], 2)

    def giving(self, unit: Unit) -> tuple[Place, ...]:
        """Where the state after a unit can be changed; empty if no module outputs or takes it."""
        return self.places(self.piece(unit).exit)

    def places(self, state: fx.Node) -> tuple[Place, ...]:
        """After the deepest module that outputs ``state``, else before all modules that take it."""
        for path in reversed(self.paths(state)):
            if path not in self._shared and self._inside[path][-1] is state:
                return (Place(path, "after"),)
        takers: dict[fx.Node, str] = {}
        for user in self.flow.users(state):
            around = [path for path in self.paths(user) if path not in self._shared]
            taking = [path for path in around if self._input(path) is state]
            if not taking:
                return ()
            takers[user] = taking[-1]
        # A change before a block also acts before the norm at its start.
        outermost = [
            next(path for path in self.paths(user) if path in takers.values()) for user in takers
        ]
        return tuple(Place(path, "before") for path in dict.fromkeys(outermost))

    def learned(self, unit: Unit) -> list[LearnedMap | None]:
        """The learned maps along the longest path through the unit, in the order of execution.

        An entry is None if the map is not a separate module.
        """
        return [self.as_map(node) for node in self.learned_nodes(unit)]

    def learned_nodes(self, unit: Unit) -> list[fx.Node]:
        """The nodes of these learned maps, whether they are separate modules or not.

        The path with the most learned maps is the main branch, rather than a parallel projection or
        a gate.
        """
        piece = self.piece(unit)
        length: dict[fx.Node, int] = {piece.entry: 0}
        came: dict[fx.Node, fx.Node] = {}
        for node in piece.nodes:
            before = [n for n in self.flow.inputs(node) if n in length]
            if not before:
                continue
            came[node] = max(before, key=lambda n: length[n])
            length[node] = length[came[node]] + self.is_learned(node)
        way, node = [], piece.exit
        while node in came:
            way.append(node)
            node = came[node]
        return [node for node in reversed(way) if self.is_learned(node)]

    def as_map(self, node: fx.Node) -> LearnedMap | None:
        """The learned map at ``node``, if a module does exactly that."""
        for path in reversed(self.paths(node)):
            inside = self._inside[path]
            entry = self._input(path)
            if path in self._shared or entry is None:
                return None
            if path not in self._grafted and not self._ends(inside, node):
                return None
            if sum(self.is_learned(n) for n in inside) == 1:
                return LearnedMap(path, node, entry, self.storage(entry), self.storage(inside[-1]))
        return None

    def _ends(self, inside: Sequence[fx.Node], node: fx.Node) -> bool:
        """Whether the output of a module is that of ``node``, up to a bias or similar."""
        while node is not inside[-1]:
            users = self.flow.users(node)
            if len(users) != 1 or len(self.flow.inputs(users[0])) > 1:
                return False
            (node,) = users
            if node not in inside or self.dissection.facts[node] - {Fact.POINTWISE, Fact.LAYOUT}:
                return False
        return True

    def beside(self, found: LearnedMap, unit: Unit) -> list[LearnedMap | None]:
        """All learned maps of the unit that are applied to the same tensor, including ``found``."""
        maps = {n: self.as_map(n) for n in self.piece(unit).nodes if self.is_learned(n)}
        return [
            map_
            for node, map_ in maps.items()
            if (map_.entry is found.entry if map_ else found.entry in self.flow.inputs(node))
        ]

    def onward(self, node: fx.Node) -> Iterator[fx.Node]:
        """A tensor, and its later versions as long as its entries are only moved."""
        yield node
        while len(users := self.flow.users(node)) == 1 and self._only_moves(users[0]):
            (node,) = users
            yield node

    def origin(self, node: fx.Node) -> fx.Node:
        """The tensor that a node was before its entries were moved."""
        while self._only_moves(node):
            (node,) = self.flow.inputs(node)
        return node

    def _only_moves(self, node: fx.Node) -> bool:
        if not self.dissection.moves(node):
            return False
        (before,) = self.flow.inputs(node)
        # A part of it would not be the same tensor.
        return prod(self.flow.shape(before)) == prod(self.flow.shape(node))

    def is_learned(self, node: fx.Node) -> bool:
        """Whether an operation mixes channels or positions with learned weights."""
        return bool(self.dissection.facts[node] & LEARNED)


def _called_again(graph: Graph) -> Iterator[str]:
    """The modules that run more than once in a pass, such as the only ReLU of a block."""
    calls: dict[str, str] = {}
    for node, paths in graph.paths.items():
        stack = node.meta.get("nn_module_stack") or {}
        keys = [key for key, (path, _) in stack.items() if "." in path]
        for path, key in zip(paths, keys, strict=True):
            if calls.setdefault(path, key) != key:
                yield path


def _storage(axes: Axes) -> Storage | None:
    roles = [roles_of(dimension) for dimension in axes]
    positions = tuple(place for place, found in enumerate(roles) if found & set("yxpt"))
    # After a learned matrix, the channels are the only dimension of unknown meaning.
    channels = [p for p, found in enumerate(roles) if found == {"c"}] or [
        p for p, found in enumerate(roles) if found == {"?"}
    ]
    mixed = any(roles[place] & {"n", "c"} for place in positions)
    if mixed or not positions or len(channels) != 1 or not any("n" in found for found in roles):
        return None
    before = behind = 0
    tokens = [axes[place][0] for place in positions if axes[place][0].role == "t"]
    if tokens:
        sizes = [("y" in roles_of(part), size_of(part)) for part in tokens[0].parts]
        grid = next((place for place, (is_grid, _) in enumerate(sizes) if is_grid), len(sizes))
        before = sum(size for _, size in sizes[:grid])
        behind = sum(size for _, size in sizes[grid + 1 :])
    return Storage(positions, channels[0], before, behind)
