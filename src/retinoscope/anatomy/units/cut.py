"""Groups steps into units.

A step that does work makes a unit; the pointwise, norm and layout steps around it belong to the
unit before or after them. Plain chains without skips are cut at every map, except within
bottlenecks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx

from retinoscope.anatomy.graph.flow import Flow, ancestors, is_tensor
from retinoscope.anatomy.reading.facts import WORK, Fact
from retinoscope.anatomy.units.steps import Step, Stepper


@dataclass
class Piece:
    """A run of steps that form one unit; ``inner`` are the units inside its branch."""

    steps: list[Step]
    inner: list[Piece] = field(default_factory=list)

    @property
    def entry(self) -> fx.Node:
        """The state that the unit starts from."""
        return self.steps[0].entry

    @property
    def exit(self) -> fx.Node:
        """The state that the unit ends in."""
        return self.steps[-1].exit

    @property
    def nodes(self) -> list[fx.Node]:
        """All operations of the unit, in the order of execution."""
        return [node for step in self.steps for node in step.nodes]

    @property
    def facts(self) -> set[Fact]:
        """Facts of the steps that make the unit; gates only weight the output of the others."""
        return set().union(*(step.facts for step in self.steps if not step.gate))

    @property
    def residual(self) -> Step | None:
        """The residual step, if the unit has one and nothing else does work in it."""
        blocks = [step for step in self.steps if step.work]
        return blocks[0] if len(blocks) == 1 and blocks[0].skip else None

    @property
    def block(self) -> bool:
        """Whether the unit contains a step with several paths."""
        return any(step.block for step in self.steps)


class Cutter:
    """Cuts the flow between two nodes into pieces."""

    def __init__(
        self, flow: Flow, facts: dict[fx.Node, set[Fact]], widths: dict[fx.Node, int]
    ) -> None:
        self.flow = flow
        self.stepper = Stepper(flow, facts)
        self.widths = widths
        """The number of channels of each state that can be viewed as maps."""

    def pieces(self, entry: fx.Node, exit: fx.Node) -> list[Piece]:
        """The units between two nodes, in order."""
        steps = list(self.stepper.steps(entry, exit))
        pieces = self._join_bottlenecks(self._group(steps))
        for piece in pieces:
            piece.inner = self._inner(piece)
        return pieces

    def _group(self, steps: Sequence[Step]) -> list[Piece]:
        """Assign every step that does no work to the unit before it or after it.

        After a plain map, steps belong to the unit before, except for padding and reductions. After
        a sum, an activation belongs to the unit before (a ResNet's state is the output of its last
        ReLU). A norm or a change of layout belongs to the unit before if the next residual unit
        starts from its output, otherwise to the next unit.
        """
        pieces: list[Piece] = []
        waiting: list[Step] = []
        for step in steps:
            if not step.work:
                waiting.append(step)
                continue
            opening = self._settle(pieces, waiting, step)
            pieces.append(Piece([*opening, step]))
            waiting = []
        opening = self._settle(pieces, waiting, None)
        if opening:
            pieces.append(Piece(opening))
        return pieces

    def _settle(
        self, pieces: list[Piece], waiting: list[Step], following: Step | None
    ) -> list[Step]:
        """Close the last piece with the steps that belong to it; returns the others."""
        if not pieces:
            return waiting
        behind_sum = pieces[-1].steps[-1].block and not (following and following.skip)
        count = 0
        while count < len(waiting) and (
            waiting[count].activation or waiting[count].gate
            if behind_sum
            else not waiting[count].opens
        ):
            count += 1
        pieces[-1].steps += waiting[:count]
        return waiting[count:]

    def _join_bottlenecks(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Join plain maps that form a bottleneck: expansion, processing, linear reduction.

        A linear map at each position that no non-linearity follows is never a unit on its own: it
        ends the unit before it. A plain map that expands the channels starts a unit that ends with
        the next such linear map, unless that expands further. Attention that ends with its product
        is joined with the projection after it.
        """
        joined: list[Piece] = []
        entry_width = 0
        index = 0
        while index < len(pieces):
            end = index
            if not pieces[index].block and joined:
                end = self._bottleneck_end(pieces, index, entry_width)
            piece = Piece([step for p in pieces[index : end + 1] for step in p.steps])
            if joined and self._belongs_before(piece, joined[-1]):
                joined[-1].steps += piece.steps
            else:
                joined.append(piece)
            entry_width = self.widths.get(joined[-1].exit, 0)
            index = end + 1
        return joined

    def _bottleneck_end(self, pieces: Sequence[Piece], index: int, entry_width: int) -> int:
        width = self.widths.get(pieces[index].exit, 0)
        if width <= entry_width:
            return index
        for end in range(index + 1, len(pieces)):
            piece = pieces[end]
            if piece.block or Fact.POOL in piece.facts or piece.exit not in self.widths:
                break
            if self._is_projection(piece):
                return end if self.widths[piece.exit] <= width else index
        return index

    def _belongs_before(self, piece: Piece, before: Piece) -> bool:
        if any(step.attends for step in before.steps if step.work):
            return piece.facts & WORK == {Fact.LINEAR} and not piece.block
        return self._is_projection(piece) and not before.block

    def _is_projection(self, piece: Piece) -> bool:
        """Whether it is a linear map at each position without a non-linearity."""
        plain = not piece.block and piece.exit in self.widths
        return plain and piece.facts & (WORK | {Fact.NONLINEAR}) == {Fact.LINEAR}

    def _inner(self, piece: Piece) -> list[Piece]:
        """The units along the branches of a block, if some of them are residual."""
        found: list[Piece] = []
        for step in piece.steps:
            if not step.block:
                continue
            for branch in self._branches(step):
                chain = self.pieces(step.entry, branch)
                if len(chain) > 1 and not any(s.work for s in chain[-1].steps):
                    chain[-2].steps += chain.pop().steps  # there is no head to assign them to
                if any(part.residual or part.inner for part in chain):
                    found += chain
        return found

    def _branches(self, step: Step) -> list[fx.Node]:
        """The branches that are combined at the exit, as far as they were computed separately."""
        if step.skip:
            made = [b for b in step.skip.branches if b in step.nodes]
        else:
            made = [n for n in self.flow.inputs(step.exit) if n in step.nodes]
        paths = {node: set(ancestors(self.flow, node, {step.entry})) for node in made}
        alone = [n for n in made if all(paths[n].isdisjoint(paths[m]) for m in made if m is not n)]
        # An exit with a single operand would be a cut vertex after another; a tuple is not a state.
        return [n for n in alone if is_tensor(n) and len(paths[n]) < len(step.nodes)]
