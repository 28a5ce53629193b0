"""Runs a model unit by unit: states, lesions and suffix runs, exact for any architecture.

Because every unit starts and ends at a cut vertex, it is a function of one tensor. A network is
therefore a chain of such functions; a lesion replaces one of them, and a suffix run starts at an
intermediate state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, fx, nn

from retinoscope.anatomy.dissect import Dissection, take_apart
from retinoscope.anatomy.graph.export import Example
from retinoscope.anatomy.graph.fingerprint import graph_hash
from retinoscope.anatomy.layout import Lens
from retinoscope.anatomy.reach import Reach
from retinoscope.anatomy.taps import UnitTaps
from retinoscope.anatomy.units.learned import multiplied_parameters, parameters_of_units
from retinoscope.anatomy.writer import Chain, Writer
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import NotResidual, WrongInput
from retinoscope.core.unit import Unit


@dataclass(frozen=True)
class State:
    """The output of the model after a unit, as stored by the model and as maps."""

    unit: Unit
    raw: Tensor
    lens: Lens | None
    taps: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """The requested taps inside the unit, by name; see :mod:`retinoscope.anatomy.taps`."""
    reaches: tuple[Reach, ...] = ()
    """What each attention reaches, in the order of the tap ``softmax``."""
    normalised: bool = False
    """Whether it is the output of a norm over channels."""

    @property
    def maps(self) -> Tensor:
        """Maps (N, C, H, W)."""
        return self._lens.maps(self.raw)

    @property
    def prefix(self) -> Tensor | None:
        """Class, distillation and register tokens (N, k, C); None if there are none."""
        return self._lens.prefix(self.raw)

    def with_maps(self, maps: Tensor, prefix: Tensor | None = None) -> State:
        """The same state with other maps; its prefix tokens stay unless others are passed."""
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
                f"The state after {self.unit.name!r} has no grid, so it cannot be viewed as maps; "
                f"its raw shape is {tuple(self.raw.shape)}."
            )
        return self.lens


class Replay:
    """A model as a chain of units that can be stopped, changed and resumed; shares its weights.

    The chain reads the model's own parameters and buffers: weights loaded into the model later are
    used here too. After moving the model to another device or precision, call :func:`replay` again.
    """

    def __init__(
        self, dissection: Dissection, again: Callable[[int], Dissection] | None = None
    ) -> None:
        self._again = again  # exports the model again for another number of images
        self._others: dict[int, Replay] = {}
        self.anatomy: Anatomy = dissection.anatomy
        self._dissection = dissection
        self._pieces = [dissection.pieces[unit.name] for unit in self.anatomy]
        self._writer = Writer(dissection.flow, self._pieces)
        self._segments: dict[tuple[object, ...], fx.GraphModule] = {}
        self._normalised: dict[str, bool] = {}
        self._tapped: dict[frozenset[str], tuple[list[UnitTaps], Chain]] = {}

    @cached_property
    def network(self) -> Chain:
        """The whole chain, which :meth:`__call__` runs."""
        return Chain(self._writer.preamble, [self._writer.segment(p) for p in self._pieces])

    @property
    def dissection(self) -> Dissection:
        """The anatomy with the graph that the chain was written from."""
        return self._dissection

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes with what the network computes, independent of its weights."""
        return graph_hash(self._dissection.flow.source)

    def parameters(self) -> dict[str, list[nn.Parameter]]:
        """The model's own parameters, by the first unit that uses them."""
        pieces = {unit.name: self._dissection.pieces[unit.name] for unit in self.anatomy}
        return parameters_of_units(self._dissection.flow, pieces)

    def multiplied(self) -> dict[nn.Parameter, int]:
        """The parameters by which states are multiplied, each with its output axis.

        Excludes norms, biases and position tables.
        """
        return multiplied_parameters(self._dissection.flow)

    def __call__(self, batch: Tensor) -> Tensor:
        """The model's logits for a batch of images."""
        return self.fitting(batch).network(batch)

    def walk(self, batch: Tensor, taps: Collection[str] = ()) -> Iterator[State]:
        """Yield the state after each unit, one at a time, so that none need be kept.

        ``taps`` names further values to read inside each unit; see :meth:`Sight.tap`.
        """
        ours = self.fitting(batch)
        if not taps:
            for unit, raw in zip(ours.anatomy, ours.network.walk(batch), strict=True):
                yield ours._state(unit, raw)
            return
        tapped, network = ours._with_taps(frozenset(taps))
        walked = zip(ours.anatomy, tapped, network.walk_all(batch), strict=True)
        for unit, inside, (raw, *values) in walked:
            state = ours._state(unit, raw)
            yield replace(state, taps=inside.made(values), reaches=inside.reaches)

    def _with_taps(self, asked: frozenset[str]) -> tuple[list[UnitTaps], Chain]:
        """The taps of each unit, and the chain whose segments output the tensors they need."""
        if asked not in self._tapped:
            lenses = self._dissection.lenses
            tapped = [
                UnitTaps(self._dissection, self._writer, piece, lenses[unit.name], asked)
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

        The last one is the logits. With ``inner``, the states of inner units are included.
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
        segments[self.index(unit)] = self._lesioned(unit)
        return Chain(self._writer.preamble, segments)

    def resume(self, unit: str | Unit, state: State | Tensor) -> Tensor:
        """The logits that follow from ``state`` after ``unit``; only later units are run.

        ``state`` comes from :meth:`states`, changed or not, or is a tensor as the model stores it.
        """
        unit = self._find(unit)
        index = self.index(unit)
        if unit not in self.anatomy.units:
            raise WrongInput(
                f"{unit.name!r} is an inner unit of {self.anatomy.units[index].name!r}: other "
                "paths bypass it, so its state does not determine the output. Resume from the "
                "outer unit."
            )
        raw = state.raw if isinstance(state, State) else state
        for ours in (self, *self._others.values()):
            if images := ours._images_in(index, raw):
                return ours.network.resume(index, raw, images)
        one = self._dissection.flow.shape(self._pieces[index].exit, 1)
        raise WrongInput(
            f"A state after {unit.name!r} has the shape {one} for one image; "
            f"got {tuple(raw.shape)}."
        )

    def lesions(
        self, batch: Tensor, units: Iterable[str | Unit] | None = None
    ) -> Iterator[tuple[Unit, Tensor]]:
        """Yield each residual unit with the logits without it. Default: all residual units.

        Removing the last units is cheap: each run starts from the state before its unit.
        """
        ours = self.fitting(batch)
        chosen = ours.anatomy.where(residual=True) if units is None else map(ours._find, units)
        images, chain = len(batch), ours.network
        shared = chain.constants(images)
        state, reached = batch, 0
        for unit in sorted(chosen, key=self.index):
            index = self.index(unit)
            while reached < index:
                state = chain.segments[reached](state, images, *shared)
                reached += 1
            lesioned = ours._lesioned(unit)(state, images, *shared)
            yield unit, chain.finish(lesioned, index + 1, images, shared)

    def _lesioned(self, unit: Unit) -> fx.GraphModule:
        """The segment that contains the unit, with the unit's output replaced by its skip."""
        return self.segment(self.index(unit), swapped=self.skip(unit))

    def skip(self, unit: Unit) -> dict[fx.Node, fx.Node]:
        """The sum at the end of a residual unit, and the operand of it that replaces it."""
        step = self._dissection.pieces[unit.name].residual
        if not unit.residual or step is None or step.skip is None:
            removable = [u.name for u in self.anatomy.walk() if u.residual]
            raise NotResidual(
                f"{unit.name!r} of {self.anatomy.model} is not residual, so no skip "
                "connection can replace its output. Units that can be removed: "
                f"{', '.join(removable) or 'none'}."
            )
        return {step.exit: step.skip.operand}

    def segment(
        self,
        index: int,
        exits: Sequence[fx.Node] = (),
        swapped: Mapping[fx.Node, fx.Node] | None = None,
        given: Sequence[fx.Node] = (),
    ) -> fx.GraphModule:
        """The segment at an index of the chain, changed; see :meth:`Writer.segment`. Cached."""
        key = index, tuple(exits), tuple((swapped or {}).items()), tuple(given)
        if key not in self._segments:
            piece = self._pieces[index]
            self._segments[key] = self._writer.segment(piece, exits, swapped, given)
        return self._segments[key]

    def _find(self, unit: str | Unit) -> Unit:
        return self.anatomy[unit if isinstance(unit, str) else unit.name]

    def index(self, unit: Unit) -> int:
        """The index in the chain of the unit, or of the outer unit that contains it."""
        outer = (u.name for u in self.anatomy if unit.name in {p.name for p in _with_inner(u)})
        return [u.name for u in self.anatomy].index(next(outer))

    def _state(self, unit: Unit, raw: Tensor) -> State:
        if unit.name not in self._normalised:
            self._normalised[unit.name] = self._dissection.ends_in_norm(unit.name)
        lens, normalised = self._dissection.lenses[unit.name], self._normalised[unit.name]
        return State(unit, raw, lens, normalised=normalised)

    @property
    def _limit(self) -> str | None:
        """The limit on the number of images in the model's code, if any."""
        source = self._dissection.flow.source
        if source.batch is not None:
            return f"is for {source.batch} images at a time"
        return None if source.most is None else f"is for {source.most} images at most"

    def fitting(self, batch: Tensor) -> Replay:
        """This chain, or one for this number of images if the model's code depends on it."""
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
                f"The anatomy of {self.anatomy.model} was read for images of {expected}; got "
                f"{got}. Call dissect or replay again for this size."
            )
        if batch.dtype != (expected := self._dissection.flow.source.image.meta["val"].dtype):
            raise WrongInput(
                f"The anatomy of {self.anatomy.model} was read in {expected}; got images in "
                f"{batch.dtype}. Convert the images or the model."
            )

    def _images_in(self, index: int, raw: Tensor) -> int | None:
        """The number of images in a raw state; None if it is not a state of this unit."""
        flow, exit = self._dissection.flow, self._pieces[index].exit
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
        self.lesioned = lesioned  # registers its parameters

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
    """Split ``model`` into units that can be run; the arguments are those of ``dissect``.

    ``before`` is applied to the images first, such as normalisation, as part of the stem.
    """

    def again(images: int) -> Dissection:
        return take_apart(model, example, output=output, name=name, images=images, before=before)

    return Replay(again(2), again)


def _with_inner(unit: Unit) -> list[Unit]:
    return [unit, *(part for inner in unit.inner for part in _with_inner(inner))]
