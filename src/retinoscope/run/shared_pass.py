"""The shared pass, which shows one forward pass to any number of watchers.

Its pieces are shards of consecutive images. A watcher may need to see a group of images together.
Which images form a group depends only on their indices in the split, not on memory, batch size or
number of jobs; an image that cannot be read leaves a gap. A group that does not fit into memory is
run in parts that advance together, unit by unit: a watcher still sees the whole group at once, and
only one unit's states are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable, WrongInput
from retinoscope.core.probe import Needs, Partial, Piece, Watcher
from retinoscope.core.sight import Group, Sight
from retinoscope.core.subject import Batch, Subject
from retinoscope.core.unit import Unit
from retinoscope.models.drawing import drawn_walk
from retinoscope.models.memory import Parts, slices, went_in_parts

SHARD = 128
"""Images per piece; with groups, the largest multiple of the group size up to this (at least 1)."""

_REFUSED = "not applicable"


class Sharing(NamedTuple):
    """The properties that passes must have in common to be merged."""

    needs: Needs
    span: int
    """Images per piece."""


@dataclass(frozen=True)
class SharedPass:
    """Watchers that see the same images, and that agree on the group size if they use groups."""

    watchers: tuple[Watcher, ...]
    prepares: bool = False
    draws: bool = True

    @property
    def questions(self) -> tuple[Watcher, ...]:
        """The watchers."""
        return self.watchers

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """Nothing: watchers do not prepare anything."""
        return {}

    def joined(self, others: Sequence[Any]) -> SharedPass:
        """One pass for the watchers of several."""
        return SharedPass(tuple(w for one in (self, *others) for w in one.watchers))

    @property
    def needs(self) -> Needs:
        """The combined needs of all watchers."""
        each = [watcher.needs for watcher in self.watchers]
        return replace(
            each[0],
            group=self.group,
            maps=all(needs.maps for needs in each),
            taps=frozenset().union(*(needs.taps for needs in each)),
            others=tuple(dict.fromkeys(name for needs in each for name in needs.others)),
        )

    @property
    def group(self) -> int | None:
        """The number of images that some watchers must see together; None if none needs groups."""
        return next((w.needs.group for w in self.watchers if w.needs.group is not None), None)

    @property
    def sharing(self) -> Sharing:
        """The properties that another pass must share to be merged with this one."""
        alike = Needs(self.needs.split, self.needs.view, self.needs.labels)
        if self.group is None:
            return Sharing(alike, SHARD)
        if self.group < 1:
            raise WrongInput(f"A group must contain at least 1 image; got {self.group}.")
        return Sharing(alike, self.group * max(1, SHARD // self.group))

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """Shards of consecutive images; the last one may be smaller."""
        if self.needs.maps and not any(map(has_maps, subject.anatomy)):
            raise NotApplicable(f"looks at feature maps; no unit of {subject.name} has any")
        total, span = len(subject.split(self.needs)), self.sharing.span
        return [
            Piece(f"{start:07d}", {"start": start, "stop": min(start + span, total)})
            for start in range(0, total, span)
        ]

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """The output of each watcher for a shard of images; see :meth:`divided`."""
        seen: list[list[Group]] = [[] for _ in self.watchers]
        memory: dict[str, Parts] = {}
        for parts in self._portions(subject, piece):
            found = self.look(subject, parts, context, memory)
            for groups, passes in zip(seen, found, strict=True):
                groups += passes
        partial: dict[str, np.ndarray] = {}
        for index, (watcher, looked) in enumerate(zip(self.watchers, seen, strict=True)):
            groups = [group for group in looked if group.indices]  # otherwise no image was readable
            whole = groups if watcher.needs.group else [_together(subject, groups)]
            for number, group in enumerate(whole):
                try:
                    found = watcher.gather(group)
                except NotApplicable as reason:  # the other watchers continue
                    found = {_REFUSED: np.array(str(reason))}
                partial |= {f"{index}:{number}:{name}": array for name, array in found.items()}
        return partial

    def divided(self, partial: Partial) -> list[Partial | NotApplicable]:
        """Split the output of :meth:`measure` by watcher; a reason replaces a missing output."""
        shares: list[dict[str, np.ndarray]] = [{} for _ in self.watchers]
        refused: dict[int, str] = {}
        for key, array in partial.items():
            index, number, name = key.split(":", 2)
            own = self.watchers[int(index)]
            shares[int(index)][f"{number}:{name}" if own.needs.group else name] = array
            if name == _REFUSED:
                refused[int(index)] = str(array)
        return [NotApplicable(refused[i]) if i in refused else own for i, own in enumerate(shares)]

    def partials(self, kept: Partial) -> list[Partial]:
        """The outputs for each group of a piece, for one watcher."""
        if self.group is None:
            return [kept]
        found: dict[int, dict[str, np.ndarray]] = {}
        for key, array in kept.items():
            number, _, name = key.partition(":")
            found.setdefault(int(number), {})[name] = array
        return [found[number] for number in sorted(found)]

    def _portions(self, subject: Subject, piece: Piece) -> Iterator[list[Batch]]:
        """The batches that are seen together: those of one group, or single batches."""
        split, (start, stop) = subject.split(self.needs), (piece.what["start"], piece.what["stop"])
        for first in range(start, stop, self.group or stop - start):
            indices = range(first, min(first + (self.group or stop), stop))
            read = split.batches(indices, subject.batch, subject.workers)
            batches = (batch for batch in read if len(batch.images))
            if self.group is None:
                yield from ([batch] for batch in batches)
            else:
                yield list(batches)

    def look(
        self,
        subject: Subject,
        parts: Sequence[Batch],
        context: Context,
        memory: dict[str, Parts] | None = None,
    ) -> list[list[Group]]:
        """The output of each watcher for some images.

        ``memory`` stores into how many parts the images must be split for each subject.

        A network that is random at test time is run several times. A watcher that needs a group
        gets the output of each pass, any other watcher the mean over them.
        """
        everyone = range(len(self.watchers))
        memory = {} if memory is None else memory
        passes = [
            self._passed(number, subject, parts, context, memory) for number in _numbers(subject)
        ]
        found = [[one[i] for one in passes] for i in everyone]
        return [
            groups if self.watchers[i].needs.group or len(groups) == 1 else [_mean(groups)]
            for i, groups in enumerate(found)
        ]

    def _passed(
        self,
        number: int,
        subject: Subject,
        parts: Sequence[Batch],
        context: Context,
        memory: dict[str, Parts],
    ) -> list[Group]:
        everyone = range(len(self.watchers))
        own = self._walked("", number, subject, parts, everyone, context, memory)
        others: dict[str, list[Group]] = {}
        for name in self.needs.others:
            asking = [i for i in everyone if name in self.watchers[i].needs.others]
            second = context.another(name)
            theirs = number % len(_numbers(second))
            others[name] = self._walked(name, theirs, second, parts, asking, context, memory)
        return [
            replace(own[i], others={n: others[n][i] for n in self.watchers[i].needs.others})
            for i in everyone
        ]

    def _walked(
        self,
        called: str,
        number: int,
        subject: Subject,
        parts: Sequence[Batch],
        asking: Sequence[int],
        context: Context,
        memory: dict[str, Parts],
    ) -> list[Group]:
        """The output of one pass, run in smaller parts as often as memory requires."""
        largest = max((len(part.images) for part in parts), default=0)

        def work(count: int) -> list[dict[str, Any]]:
            smaller = [p.rows(cut) for p in parts for cut in slices(len(p.images), count)]
            return self._kept(called, number, subject, smaller, asking)

        def split(count: int) -> None:
            context.say(went_in_parts(largest, count))

        fitting = memory.setdefault(called, Parts())
        kept = fitting.run(work, largest, split) if parts else [{} for _ in self.watchers]
        indices, labels = _known(parts)
        numbers = None if labels is None else labels.numpy()
        return [Group(subject.anatomy, rows, indices, numbers, number) for rows in kept]

    def _kept(
        self,
        called: str,
        number: int,
        subject: Subject,
        parts: Sequence[Batch],
        asking: Sequence[int],
    ) -> list[dict[str, Any]]:
        kept: list[dict[str, Any]] = [{} for _ in self.watchers]
        needs = [watcher.needs for watcher in self.watchers]
        taps = frozenset().union(*(needs[index].taps for index in asking))
        known, inputs = _known(parts), tuple(part.images for part in parts)
        with torch.inference_mode():
            walks = [drawn_walk(subject, number, p.indices, p.images, taps) for p in parts]
            for states in zip(*walks, strict=True):
                whole = Sight(states, *known, called, number, inputs)
                apart = [
                    Sight((state,), part.indices, part.labels, called, number, (part.images,))
                    for state, part in zip(states, parts, strict=True)
                ]
                for index in asking:
                    if needs[index].maps and not has_maps(whole.unit):
                        continue
                    seen = [whole] if needs[index].group or len(parts) == 1 else apart
                    rows = [self.watchers[index].watch(sight) for sight in seen]
                    if rows[0] is not None:
                        kept[index][whole.unit.name] = _arrays(rows)
        return kept


def _numbers(subject: Subject) -> range:
    """The indices of the passes to run."""
    return range(max(1, subject.passes))


def _mean(groups: Sequence[Group]) -> Group:
    """The mean of the outputs over passes."""
    first = groups[0]
    rows = {unit: _averaged([group.rows[unit] for group in groups]) for unit in first.rows}
    others = {name: _mean([group.others[name] for group in groups]) for name in first.others}
    return replace(first, rows=rows, others=others)


def _averaged(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], Mapping):
        return {name: _averaged([one[name] for one in arrays]) for name in arrays[0]}
    return np.mean(arrays, axis=0)


def has_maps(unit: Unit) -> bool:
    """Whether the output of a unit has more than one spatial position."""
    return unit.grid is not None and unit.grid.height * unit.grid.width > 1


def _known(parts: Sequence[Batch]) -> tuple[tuple[int, ...], Tensor | None]:
    """The indices of the images, and their labels if known."""
    indices = tuple(index for part in parts for index in part.indices)
    labels = [part.labels for part in parts if part.labels is not None]
    return indices, torch.cat(labels) if labels else None


def _arrays(rows: Sequence[Tensor | Mapping[str, Tensor] | None]) -> Any:
    """The output of a watcher for each part, as one array or several by name."""
    named = [row for row in rows if isinstance(row, Mapping)]
    if named:
        return {name: _arrays([row[name] for row in named]) for name in named[0]}
    tensors = [row.cpu() for row in rows if isinstance(row, Tensor)]
    plain = [t.double() if t.is_floating_point() else t for t in tensors]
    return _concatenated([t.numpy() for t in plain])


def _together(subject: Subject, groups: Sequence[Group]) -> Group:
    """Concatenate the rows of several batches, for watchers that treat each image on its own."""
    if not groups:
        return Group(subject.anatomy, {}, ())
    labels = [group.labels for group in groups if group.labels is not None]
    return Group(
        groups[0].anatomy,
        {unit: _concatenated([g.rows[unit] for g in groups]) for unit in groups[0].rows},
        tuple(index for group in groups for index in group.indices),
        np.concatenate(labels) if labels else None,
        groups[0].number,
        {name: _together(subject, [g.others[name] for g in groups]) for name in groups[0].others},
    )


def _concatenated(arrays: Sequence[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], Mapping):
        return {name: _concatenated([one[name] for one in arrays]) for name in arrays[0]}
    return np.concatenate(arrays)
