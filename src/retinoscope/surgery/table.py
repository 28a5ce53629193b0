"""The workspace of all surgeries: a copy of a model, and access to its units and modules.

Every surgery uses it, so that all of them copy the model first, find units only by anatomy, keep
the keys of unchanged parameters, and name the unit in an error if they cannot change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import nn

from retinoscope.anatomy.dissect import known_or_taken_apart
from retinoscope.anatomy.replay import Replay
from retinoscope.anatomy.sites import LearnedMap, Place, Sites
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import SurgeryRefused
from retinoscope.core.unit import Kind, Unit
from retinoscope.surgery.calls import Call, copied, observe
from retinoscope.surgery.graft import Side, graft, grafted_paths


class Table:
    """A copy of ``model`` that can be changed; ``patient`` is the result."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, operation: str) -> None:
        self.model, self.operation = model, operation
        self.anatomy = anatomy
        self.patient = copied(model)
        # The graph of the original model is usually cached, and that of the copy is the same.
        found = known_or_taken_apart(model, anatomy.image[1:], anatomy.model)
        self.whole = found.anatomy
        """The anatomy of the whole model, of which ``anatomy`` may be a part."""
        self.sites = Sites(found, _aliased(self.patient), grafted_paths(self.patient))
        self.names = {unit.name for unit in anatomy.walk()}
        if foreign := self.names - {unit.name for unit in found.anatomy.walk()}:
            raise SurgeryRefused(
                f"The anatomy given to {operation} is not that of this {type(model).__name__}: "
                f"the model has no unit {sorted(foreign)[0]!r}. Read its anatomy with: "
                "retinoscope.dissect(model, size)"
            )

    @property
    def operated(self) -> bool:
        """Whether an earlier surgery has added parts to modules."""
        return bool(grafted_paths(self.model))

    def units(self, kinds: Iterable[Kind]) -> list[Unit]:
        """The units of these kinds that may be changed; inner units replace their outer one.

        Raises if there are none.
        """
        wanted = list(kinds)
        found = [
            unit
            for outer in self.whole.units
            for unit in (_leaves(outer) if outer.inner else [outer])
            if unit.kind in wanted and {unit.name, outer.name} & self.names
        ]
        if not found:
            asked = " or ".join(wanted)
            raise self.refusal(f"it has no {asked} unit. It has: {self.anatomy.summary()}")
        return found

    def refusal(self, why: str, unit: Unit | None = None) -> SurgeryRefused:
        """The error that says what cannot be done, where, and why."""
        where = f" at {unit.name!r}" if unit else ""
        return SurgeryRefused(
            f"{self.operation} cannot be applied to {self.anatomy.model}{where}: {why}."
        )

    def module(self, path: str) -> nn.Module:
        """The module of the copy at a path."""
        return self.patient.get_submodule(path)

    def graft(self, path: str, part: nn.Module, side: Side) -> None:
        """Add ``part`` before, after or around a module of the copy."""
        takes, gives = 0, None
        if side == "before":
            takes = self._taken(path)
        elif side == "after":
            gives = self._given(path)
        graft(self.module(path), self.like(path, part), side, takes, gives)

    @cached_property
    def calls(self) -> dict[str, Call]:
        """How the modules of the copy are called, before anything is changed."""
        return observe(self.model, self.anatomy.image[1:])

    def _taken(self, path: str) -> int | str:
        """The argument in which a module takes the tensor that depends on the image."""
        call = self.calls.get(path)
        found = [] if call is None else list(call.takes)
        if len(found) != 1 or found[0].key is None:
            raise self.refusal(
                f"{path!r} takes {len(found)} tensors that depend on the image, and it is "
                "ambiguous which one to change"
            )
        return found[0].key

    def _given(self, path: str) -> int | str | None:
        """The part of a module's output that is the tensor in the graph."""
        call = self.calls.get(path)
        found = [] if call is None else list(call.gives)
        if len(found) > 1:
            shape = self.sites.shape_given(path)
            found = [seen for seen in found if seen.shape[1:] == shape[1:]]
        if len(found) != 1:
            raise self.refusal(
                f"{path!r} returns several tensors, and it is ambiguous which one to change"
            )
        return found[0].key

    def catch(self, places: Sequence[Place], part: nn.Module) -> None:
        """Add ``part`` at all of ``places``, which together cover one state."""
        for place in places:
            self.graft(place.module, part, place.side)

    def replace(self, path: str, part: nn.Module) -> None:
        """Replace a module by ``part``, which takes one tensor and returns one."""
        old, call = self.module(path), self.calls.get(path)
        if call is None or [seen.key for seen in call.takes] != [0] or call.arguments != 1:
            raise self.refusal(
                f"{path!r} is not called with exactly one tensor, as its replacement would be"
            )
        if [seen.key for seen in call.gives] != [None]:
            raise self.refusal(
                f"{path!r} does not return exactly one tensor, as its replacement would"
            )
        self.patient.set_submodule(path, self.like(path, part).train(old.training))

    def like(self, path: str, part: nn.Module) -> nn.Module:
        """Move ``part`` to the device and dtype of a module, or of the copy if it has none."""
        near = (*self.module(path).parameters(), *self.patient.parameters())
        like = next((p for p in near if p.is_floating_point()), None)
        return part if like is None else part.to(like.device, like.dtype)

    def learned(self, unit: Unit) -> list[LearnedMap]:
        """The learned maps of the unit; raises if one of them is not a separate module."""
        found = self.sites.learned(unit)
        if not found or any(map_ is None for map_ in found):
            raise self.refusal("one of its learned maps is not a separate module", unit)
        return [map_ for map_ in found if map_ is not None]

    @property
    def last(self) -> Unit:
        """The unit before the head."""
        body = [unit for unit in self.whole.units if unit.kind is not Kind.HEAD]
        return body[-1]

    def head_reads(self, part: slice) -> bool:
        """Whether the logits depend on these tokens of the state before the head.

        The tokens are set to NaN, which spreads to everything computed from them for any weights.
        """
        exit = self.sites.piece(self.last).exit
        storage = self.sites.storage(exit)
        if storage is None or len(storage.positions) != 1:
            raise self.refusal("its state is not stored as tokens", self.last)
        source = self.sites.flow.source
        like = source.image.meta["val"]
        shape = self.sites.flow.shape(exit, source.batch or 2)
        state = torch.ones(shape, dtype=like.dtype, device=like.device)
        state.movedim(storage.positions[0], 0)[part] = torch.nan
        with torch.no_grad():
            return bool(Replay(self.sites.dissection).resume(self.last, state).isnan().any())


def _aliased(model: nn.Module) -> list[str]:
    """Paths of modules that the model contains under several names."""
    paths = list(model.named_modules(remove_duplicate=False))
    count = Counter(id(module) for _, module in paths)
    return [path for path, module in paths if count[id(module)] > 1]


def _leaves(unit: Unit) -> list[Unit]:
    if not unit.inner:
        return [unit]
    return [leaf for inner in unit.inner for leaf in _leaves(inner)]
