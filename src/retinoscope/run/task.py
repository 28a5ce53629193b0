"""A task: what one worker does at a time, in this process or in another.

A task is one piece of a probe, or one shard of images for all watchers that still lack it: one
pass through the network serves them all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import Partial, Piece, Probe, Watcher
from retinoscope.core.subject import Batch, SetAside, Split, Subject
from retinoscope.core.unit import Unit
from retinoscope.models.device import out_of_memory
from retinoscope.run.piece import Finished

SHARD = 128
"""Images per piece of the shared pass."""


@dataclass(frozen=True)
class Task:
    """Some probes and a piece that is the next for all of them."""

    probes: tuple[Probe | Watcher, ...]
    """One probe, or any number of watchers that need the same images."""
    piece: Piece
    given: Partial | None = None
    """What the probe's first piece gave."""


@dataclass(frozen=True)
class Outcome:
    """What a task gave: one finished piece per probe, and what had to be said on the way."""

    finished: tuple[Finished, ...]
    notices: tuple[str, ...] = ()
    refused: str = ""
    """Why the probe is not applicable after all, where only measuring shows it."""
    seconds: float = 0.0


def shards(split: Split) -> list[Piece]:
    """The pieces of the shared pass: consecutive images."""
    starts = range(0, len(split), SHARD)
    return [
        Piece(f"{start:07d}", {"start": start, "stop": min(start + SHARD, len(split))})
        for start in starts
    ]


def has_maps(unit: Unit) -> bool:
    """Whether what a unit gives is spread over more than one position."""
    return unit.grid is not None and unit.grid.height * unit.grid.width > 1


def perform(task: Task, subject: Subject) -> Outcome:
    """Do the work of a task; images that it had to set aside come back with what it gave."""
    start = time.monotonic()
    aside: list[SetAside] = []
    notices: list[str] = []
    watched = {which: _Recorded(split, aside) for which, split in subject.splits.items()}
    recorded = replace(subject, splits=watched, given=task.given, say=notices.append)
    watchers = [probe for probe in task.probes if isinstance(probe, Watcher)]
    if watchers:
        partials = _shared_pass(watchers, task.piece, recorded, notices)
    else:
        (probe,) = task.probes
        assert isinstance(probe, Probe)  # a task holds one probe or watchers only
        try:
            partials = [probe.measure(recorded, task.piece)]
        except NotApplicable as reason:
            return Outcome((), tuple(dict.fromkeys(notices)), refused=str(reason))
    lost = tuple(dict.fromkeys(aside))
    finished = tuple(Finished(partial, lost) for partial in partials)
    seconds = time.monotonic() - start
    return Outcome(finished, tuple(dict.fromkeys(notices)), seconds=seconds)


@dataclass(frozen=True)
class _Recorded:
    """A split that remembers what it had to set aside, whoever reads it."""

    split: Split
    aside: list[SetAside] = field(repr=False)

    def __len__(self) -> int:
        return len(self.split)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.split, name)

    def known(self) -> _Recorded:
        return _Recorded(self.split.known(), self.aside)

    def batches(self, indices: Sequence[int], size: int, workers: int = 0) -> Iterator[Batch]:
        for batch in self.split.batches(indices, size, workers):
            self.aside.extend(batch.set_aside)
            yield batch


def _shared_pass(
    watchers: Sequence[Watcher], piece: Piece, subject: Subject, notices: list[str]
) -> list[Partial]:
    """One pass over a shard: every watcher sees the maps of every unit once."""
    rows: list[dict[str, list[np.ndarray]]] = [{} for _ in watchers]
    indices = range(piece.what["start"], piece.what["stop"])
    split = subject.split(watchers[0].needs)
    for batch in split.batches(indices, subject.batch, subject.workers):
        for seen in _watched(watchers, subject, batch, notices):
            for kept, units in zip(rows, seen, strict=True):
                for unit, row in units.items():
                    kept.setdefault(unit, []).append(row)
    return [
        watcher.gather(subject.anatomy, _joined(kept))
        for watcher, kept in zip(watchers, rows, strict=True)
    ]


def _joined(kept: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    return {unit: np.concatenate(parts) for unit, parts in kept.items()}


def _watched(
    watchers: Sequence[Watcher], subject: Subject, batch: Batch, notices: list[str]
) -> Iterator[list[dict[str, np.ndarray]]]:
    """What each watcher keeps of a batch; halved as often as memory demands."""
    parts = [batch.images] if len(batch.images) else []
    while parts:
        images = parts.pop(0)
        try:
            yield watch(watchers, subject, images)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if len(images) == 1:
                raise RetinoscopeError(
                    f"One image of {tuple(images.shape[1:])} does not fit into memory for "
                    f"{subject.name}. Use a smaller --size, or --precision bfloat16."
                ) from error
            half = len(images) // 2
            notices.append(f"out of memory: batch halved from {len(images)} to {half} images")
            parts[:0] = [images[:half], images[half:]]


def watch(
    watchers: Sequence[Watcher], subject: Subject, images: torch.Tensor
) -> list[dict[str, np.ndarray]]:
    """What each watcher keeps of these images (N, C, H, W), by unit: one forward pass."""
    kept: list[dict[str, torch.Tensor]] = [{} for _ in watchers]
    with torch.inference_mode():
        for state in subject.replay.walk(subject.to_device(images)):
            if state.lens is None or not has_maps(state.unit):
                continue
            maps = state.maps
            if maps.dtype in (torch.bfloat16, torch.float16):
                maps = maps.float()
            for watcher, rows in zip(watchers, kept, strict=True):
                rows[state.unit.name] = watcher.watch(state.unit, maps)
    return [{unit: row.cpu().double().numpy() for unit, row in rows.items()} for rows in kept]
