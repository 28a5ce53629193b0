"""Running a model unit by unit: states, lesions and suffix runs, exact on any architecture.

Because every unit starts and ends at a cut vertex, it is a function of one tensor. So a network is
a chain of such functions; a lesion exchanges one of them, a suffix run starts in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, fx, nn

from retinoscope.anatomy.dissect import Dissection, take_apart
from retinoscope.anatomy.graph.export import Example
from retinoscope.anatomy.graph.fingerprint import graph_hash
from retinoscope.anatomy.layout import Lens
from retinoscope.anatomy.taps import UnitTaps
from retinoscope.anatomy.units.learned import multiplied_parameters, parameters_of_units
from retinoscope.anatomy.writer import Chain, Writer
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import NotResidual, WrongInput
from retinoscope.core.unit import Unit


@dataclass(frozen=True)
class State:
    """What the model holds after a unit, as it stores it and as maps."""

    unit: Unit
    raw: Tensor
    lens: Lens | None
    taps: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """What was asked for of the unit's inside, by name; see :mod:`retinoscope.anatomy.taps`."""

    @property
    def maps(self) -> Tensor:
        """Maps (N, C, H, W)."""
        return self._lens.maps(self.raw)

    @property
    def prefix(self) -> Tensor | None:
        """Class, distillation and register tokens (N, k, C); None where there are none."""
        return self._lens.prefix(self.raw)

    def with_maps(self, maps: Tensor, prefix: Tensor | None = None) -> State:
        """The same state with other maps; its prefix tokens stay unless others are given."""
        tokens = self.prefix if prefix is None else prefix
        for new, old in ((maps, self.maps), (tokens, self.prefix)):
            if new is not None and (old is None or new.shape != old.shape):
                expected = "none" if old is None else f"the shape {tuple(old.shape)}"
                raise WrongInput(
                    f"The state after {self.unit.name!r} needs {expected}; got {tuple(new.shape)}."
                )
        return replace(self, raw=self._lens.raw(maps, tokens))

    @property
    def _lens(self) -> Lens:
        if self.lens is None:
            raise WrongInput(
                f"The state after {self.unit.name!r} has no grid, so it cannot be seen as maps; "
                f"its raw shape is {tuple(self.raw.shape)}."
            )
        return self.lens


class Replay:
    """A model as a chain of units that can be stopped, cut and resumed; it shares its weights.

    The chain reads the model's own parameters and buffers: weights loaded into the model later
    are seen here too. A model moved to another device or precision must be taken apart anew.
    """

    def __init__(
        self, dissection: Dissection, again: Callable[[int], Dissection] | None = None
    ) -> None:
        self._again = again  # takes the model apart for another number of images
        self._others: dict[int, Replay] = {}
        self.anatomy: Anatomy = dissection.anatomy
        self._dissection = dissection
        self._pieces = [dissection.pieces[unit.name] for unit in self.anatomy]
        self._writer = Writer(dissection.flow, self._pieces)
        self._without: dict[str, fx.GraphModule] = {}
        self._tapped: dict[frozenset[str], tuple[list[UnitTaps], Chain]] = {}

    @cached_property
    def network(self) -> Chain:
        """The whole chain: what :meth:`__call__` runs."""
        return Chain(self._writer.preamble, [self._writer.segment(p) for p in self._pieces])

    @cached_property
    def fingerprint(self) -> str:
        """Changes when what the network computes does, whatever its weights."""
        return graph_hash(self._dissection.flow.source)

    def parameters(self) -> dict[str, list[nn.Parameter]]:
        """The model's own parameters by the units that use them first."""
        pieces = {unit.name: self._dissection.pieces[unit.name] for unit in self.anatomy}
        return parameters_of_units(self._dissection.flow, pieces)

    def multiplied(self) -> dict[nn.Parameter, int]:
        """The parameters that states are multiplied with, each with its axis of outputs.

        No norms, biases or position tables.
        """
        return multiplied_parameters(self._dissection.flow)

    def __call__(self, batch: Tensor) -> Tensor:
        """The model's logits for a batch of images."""
        return self.fitting(batch).network(batch)

    def walk(self, batch: Tensor, taps: Collection[str] = ()) -> Iterator[State]:
        """The state after each unit, one at a time, so that none need be kept.

        ``taps`` names what else is wanted of each unit's inside; see :meth:`Sight.tap`.
        """
        ours = self.fitting(batch)
        if not taps:
            for unit, raw in zip(ours.anatomy, ours.network.walk(batch), strict=True):
                yield ours._state(unit, raw)
            return
        tapped, network = ours._with_taps(frozenset(taps))
        walked = zip(ours.anatomy, tapped, network.walk_all(batch), strict=True)
        for unit, inside, (raw, *values) in walked:
            yield replace(ours._state(unit, raw), taps=inside.made(values))

    def _with_taps(self, asked: frozenset[str]) -> tuple[list[UnitTaps], Chain]:
        """The taps of each unit, and the chain whose segments give what they are made from."""
        if asked not in self._tapped:
            lenses = self._dissection.lenses
            tapped = [
                UnitTaps(self._dissection, piece, lenses[unit.name], asked)
                for unit, piece in zip(self.anatomy, self._pieces, strict=True)
            ]
            segments = [
                self._writer.segment(piece, [piece.exit, *inside.nodes])
                for piece, inside in zip(self._pieces, tapped, strict=True)
            ]
            self._tapped[asked] = tapped, Chain(self._writer.preamble, segments)
        return self._tapped[asked]

    def states(self, batch: Tensor, inner: bool = False) -> dict[str, State]:
        """The state after every unit by its name, from one forward pass.

        The last one holds the logits. With ``inner``, the states of inner units are there too.
        """
        if not inner:
            return {state.unit.name: state for state in self.walk(batch)}
        ours = self.fitting(batch)
        found: dict[str, State] = {}
        for unit, raws in zip(ours.anatomy, ours._inner_network.walk_all(batch), strict=True):
            for part, raw in zip(_with_inner(unit), raws, strict=True):
                found[part.name] = ours._state(part, raw)
        return found

    @cached_property
    def _inner_network(self) -> Chain:
        segments = []
        for unit, piece in zip(self.anatomy, self._pieces, strict=True):
            exits = [self._dissection.pieces[part.name].exit for part in _with_inner(unit)]
            segments.append(self._writer.segment(piece, exits))
        return Chain(self._writer.preamble, segments)

    def without(self, unit: str | Unit) -> nn.Module:
        """The model without one residual unit: its output is its skip operand.

        The module shares the model's parameters, so gradients reach them; moving it to another
        device or precision would move them too.
        """
        unit = self._find(unit)
        lesioned = self._without_unit(unit)
        return lesioned if self._limit is None else _Fitted(self, unit, lesioned)

    def _without_unit(self, unit: Unit) -> Chain:
        segments = list(self.network.segments)
        segments[self._place(unit)] = self._lesioned(unit)
        return Chain(self._writer.preamble, segments)

    def resume(self, unit: str | Unit, state: State | Tensor) -> Tensor:
        """The logits that follow from ``state`` after ``unit``; only what comes behind it runs.

        ``state`` is one that :meth:`states` gave, changed or not, or a tensor as the model
        stores it.
        """
        unit = self._find(unit)
        place = self._place(unit)
        if unit not in self.anatomy.units:
            raise WrongInput(
                f"{unit.name!r} is an inner unit of {self.anatomy.units[place].name!r}: other "
                "paths lead past it, so its state does not determine what follows. Resume from "
                "the outer one."
            )
        raw = state.raw if isinstance(state, State) else state
        for ours in (self, *self._others.values()):
            if images := ours._images_in(place, raw):
                return ours.network.resume(place, raw, images)
        one = self._dissection.flow.shape(self._pieces[place].exit, 1)
        raise WrongInput(
            f"A state after {unit.name!r} has the shape {one} for one image; "
            f"got {tuple(raw.shape)}."
        )

    def lesions(
        self, batch: Tensor, units: Iterable[str | Unit] | None = None
    ) -> Iterator[tuple[Unit, Tensor]]:
        """For each residual unit in turn, the logits without it; all of them if none is named.

        Removing the last units costs little: each run starts from the state before its unit.
        """
        ours = self.fitting(batch)
        chosen = ours.anatomy.where(residual=True) if units is None else map(ours._find, units)
        images, chain = len(batch), ours.network
        shared = chain.constants(images)
        state, reached = batch, 0
        for unit in sorted(chosen, key=self._place):
            place = self._place(unit)
            while reached < place:
                state = chain.segments[reached](state, images, *shared)
                reached += 1
            lesioned = ours._lesioned(unit)(state, images, *shared)
            yield unit, chain.finish(lesioned, place + 1, images, shared)

    def _lesioned(self, unit: Unit) -> fx.GraphModule:
        """The segment in which the unit lies, with the unit's output replaced by its skip."""
        if unit.name not in self._without:
            step = self._dissection.pieces[unit.name].residual
            if not unit.residual or step is None or step.skip is None:
                removable = [u.name for u in self.anatomy.walk() if u.residual]
                raise NotResidual(
                    f"{unit.name!r} of {self.anatomy.model} is not residual: nothing could take "
                    "the place of its output. Units that can be removed: "
                    f"{', '.join(removable) or 'none'}."
                )
            piece = self._pieces[self._place(unit)]
            swapped = {step.exit: step.skip.operand}
            self._without[unit.name] = self._writer.segment(piece, swapped=swapped)
        return self._without[unit.name]

    def _find(self, unit: str | Unit) -> Unit:
        return self.anatomy[unit if isinstance(unit, str) else unit.name]

    def _place(self, unit: Unit) -> int:
        """The place in the chain of the unit, or of the outer unit that it lies in."""
        outer = (u.name for u in self.anatomy if unit.name in {p.name for p in _with_inner(u)})
        return [u.name for u in self.anatomy].index(next(outer))

    def _state(self, unit: Unit, raw: Tensor) -> State:
        return State(unit, raw, self._dissection.lenses[unit.name])

    @property
    def _limit(self) -> str | None:
        """What the model's code says about the number of images, if anything."""
        source = self._dissection.flow.source
        if source.batch is not None:
            return f"is for {source.batch} images at a time"
        return None if source.most is None else f"is for {source.most} images at most"

    def fitting(self, batch: Tensor) -> Replay:
        """This chain, or one made for as many images, where the model's code depends on that."""
        self._check(batch)
        source, images = self._dissection.flow.source, len(batch)
        if images == source.batch or (source.batch is None and images <= (source.most or images)):
            return self
        if images not in self._others:
            if self._again is None:
                raise WrongInput(f"The graph of {self.anatomy.model} {self._limit}; got {images}.")
            self._others[images] = Replay(self._again(images))
        return self._others[images]

    def _check(self, batch: Tensor) -> None:
        if tuple(batch.shape[1:]) != self.anatomy.image:
            expected, got = ("×".join(map(str, s)) for s in (self.anatomy.image, batch.shape[1:]))
            raise WrongInput(
                f"{self.anatomy.model} was taken apart for images of {expected}; got {got}. "
                "Take it apart anew for this size."
            )
        if batch.dtype != (expected := self._dissection.flow.source.image.meta["val"].dtype):
            raise WrongInput(
                f"{self.anatomy.model} was taken apart in {expected}; got images in {batch.dtype}."
            )

    def _images_in(self, place: int, raw: Tensor) -> int | None:
        """How many images a raw state holds; None where it is no state of this unit."""
        flow, exit = self._dissection.flow, self._pieces[place].exit
        fixed, most = flow.source.batch, flow.source.most
        if fixed is not None:
            return fixed if tuple(raw.shape) == flow.shape(exit) else None
        one, two = (flow.shape(exit, batch) for batch in (1, 2))
        for size, a, b in zip(raw.shape, one, two, strict=False):
            if a != b and (size - a) % (b - a) == 0:
                images = 1 + (size - a) // (b - a)
                if tuple(raw.shape) == flow.shape(exit, images) and images <= (most or images):
                    return images
        return None


class _Fitted(nn.Module):
    """A lesioned model whose graph depends on the number of images."""

    def __init__(self, replay: Replay, unit: Unit, lesioned: nn.Module) -> None:
        super().__init__()
        self.replay, self.unit = replay, unit
        self.lesioned = lesioned  # for its parameters

    def forward(self, batch: Tensor) -> Tensor:
        ours = self.replay.fitting(batch)
        return ours._without_unit(ours._find(self.unit))(batch)


def replay(
    model: nn.Module,
    example: Example = 224,
    *,
    output: str | None = None,
    name: str | None = None,
    before: nn.Module | None = None,
) -> Replay:
    """Take ``model`` apart and keep the parts ready to run; arguments as for ``dissect``.

    ``before`` is done to the images first, such as their normalisation, as part of the stem.
    """

    def again(images: int) -> Dissection:
        return take_apart(model, example, output=output, name=name, images=images, before=before)

    return Replay(again(2), again)


def _with_inner(unit: Unit) -> list[Unit]:
    return [unit, *(part for inner in unit.inner for part in _with_inner(inner))]
