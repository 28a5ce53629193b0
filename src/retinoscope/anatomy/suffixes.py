"""Runs images through a network once, and for each lesion again from the state before it.

Parts of the images advance together, unit by unit, because a replaced value may depend on the same
value of the other images of their group. Only one unit's states are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from retinoscope.anatomy.layout import lens
from retinoscope.anatomy.lesions import Lesion, Slot
from retinoscope.anatomy.replay import Replay
from retinoscope.numerics.influence import block_influence

Finder = Callable[[Replay], Sequence[Lesion]]
Replacing = Callable[[Tensor], Tensor]
"""Maps the same part of the values of all images, (N, …), to what replaces it, (N or 1, …)."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a network for some images, in order."""

    intact: Tensor
    lesioned: list[Tensor]
    """The outputs with each lesion."""
    influence: Tensor
    """(N, lesions): how much each removed unit changes the direction of its input, mean over
    positions and prefix tokens; NaN for other lesions, and if the states differ in shape."""


@torch.inference_mode()
def run_lesions(
    replay: Replay, find: Finder, parts: Sequence[Tensor], replacing: Replacing | None = None
) -> Outputs:
    """The outputs for some images, intact and with each lesion.

    Args:
        replay: The network.
        find: Returns the lesions, in the order of the units in which they start. It is called for
            each graph, because the code of some models depends on the number of images.
        parts: The images, in parts that go through the network separately.
        replacing: Needed for lesions that replace something.
    """
    found: dict[Replay, Sequence[Lesion]] = {}
    passes: list[_Pass] = []
    for part in parts:
        fitting = replay.fitting(part)
        found[fitting] = found.get(fitting) or find(fitting)
        passes.append(_Pass(fitting, found[fitting], part))
    lesions = passes[0].lesions
    lesioned: list[Tensor] = [torch.empty(0)] * len(lesions)
    images = sum(one.images for one in passes)
    influence = torch.full((images, len(lesions)), torch.nan, dtype=torch.float64)
    for index in range(len(replay.anatomy)):
        here = [k for k, lesion in enumerate(lesions) if lesion.start == index]
        for one in passes:
            one.step(index, here)
        for k in here:
            if lesions[k].slot is None:
                each = [one.removed(k) for one in passes]
            else:
                assert replacing is not None
                each = _replaced(passes, k, replacing)
            lesioned[k] = torch.cat(each)
            if lesions[k].span is not None:
                influence[:, k] = torch.cat([one.influence(k) for one in passes])
    return Outputs(torch.cat([one.state for one in passes]), lesioned, influence)


def _replaced(passes: Sequence[_Pass], k: int, replacing: Replacing) -> list[Tensor]:
    """The outputs of all parts with a part of a value replaced, which all images determine."""
    seen = [one.seen(k) for one in passes]
    new = replacing(torch.cat(seen))
    if len(new) == 1:
        return [one.replaced(k, new) for one in passes]
    shares = new.split([len(part) for part in seen])
    return [one.replaced(k, share) for one, share in zip(passes, shares, strict=True)]


class _Pass:
    """Some images on their way through the network: the states before and after one segment."""

    def __init__(self, replay: Replay, lesions: Sequence[Lesion], batch: Tensor) -> None:
        self.replay, self.lesions, self.chain = replay, lesions, replay.network
        self.images = len(batch)
        self.shared = self.chain.constants(self.images)
        self.before = self.state = batch
        self.values: dict[fx.Node, Tensor] = {}

    def step(self, index: int, lesions: Sequence[int]) -> None:
        """Run the next segment; keeps the values inside that these lesions need."""
        ends = self._ends(index)
        wanted = dict.fromkeys(n for k in lesions for n in _nodes(self.lesions[k]))
        inside = [node for node in wanted if node not in ends]
        self.before = self.state
        if inside:
            segment = self.replay.segment(index, [ends[1], *inside])
            self.state, *values = segment(self.before, self.images, *self.shared)
        else:
            values = []
            self.state = self.chain.segments[index](self.before, self.images, *self.shared)
        known = zip((*ends, *inside), (self.before, self.state, *values), strict=True)
        self.values = dict(known)

    def removed(self, number: int) -> Tensor:
        """The output without what a lesion removes."""
        lesion, state = self.lesions[number], self.before
        last = max(lesion.swapped)
        for index in range(lesion.start, last + 1):
            swapped = lesion.swapped.get(index)
            plain = self.chain.segments[index]
            segment = self.replay.segment(index, swapped=swapped) if swapped else plain
            state = segment(state, self.images, *self.shared)
        return self.chain.finish(state, last + 1, self.images, self.shared)

    def seen(self, number: int) -> Tensor:
        """What a lesion replaces, (N, …)."""
        slot = self._slot(number)
        return slot.slices.seen(self.values[slot.node])[:, slot.number]

    def replaced(self, number: int, by: Tensor) -> Tensor:
        """The output with it replaced."""
        slot, index = self._slot(number), self.lesions[number].start
        value = slot.slices.replaced(self.values[slot.node], slot.number, by)
        if slot.node is not self._ends(index)[1]:
            segment = self.replay.segment(index, given=(slot.node,))
            value = segment(self.before, value, self.images, *self.shared)
        return self.chain.finish(value, index + 1, self.images, self.shared)

    def influence(self, number: int) -> Tensor:
        """How much a removed unit changes the direction of its input (N,); NaN if undefined."""
        span = self.lesions[number].span or ()
        tokens = [self._tokens(node) for node in span]
        shapes = [[one.shape for one in each] for each in tokens]
        if not tokens or not shapes[0] or shapes[0] != shapes[1]:
            return torch.full((self.images,), torch.nan, dtype=torch.float64)
        apart = [block_influence(*both) for both in zip(*tokens, strict=True)]
        return torch.cat(apart, 1).cpu().double().mean(1)

    def _tokens(self, node: fx.Node) -> list[Tensor]:
        """A state as maps and prefix tokens, (N, C, …); empty if it has no maps."""
        view = lens(self.replay.dissection.meaning[node].axes)
        if view is None:
            return []
        maps, prefix = view.maps(self.values[node]), view.prefix(self.values[node])
        found = [maps] if prefix is None else [maps, prefix.mT]
        return [one.float() if one.dtype.itemsize < 4 else one for one in found]

    def _ends(self, index: int) -> tuple[fx.Node, fx.Node]:
        """The states before and after a segment."""
        piece = self.replay.dissection.pieces[self.replay.anatomy.units[index].name]
        return piece.entry, piece.exit

    def _slot(self, number: int) -> Slot:
        slot = self.lesions[number].slot
        assert slot is not None  # only such lesions replace something
        return slot


def _nodes(lesion: Lesion) -> tuple[fx.Node, ...]:
    """The nodes inside a segment whose values a lesion needs."""
    return (lesion.slot.node,) if lesion.slot else lesion.span or ()
