"""The loss and the time of a training in progress."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from retinoscope.train.checkpoints import Checkpoint
from retinoscope.train.processes import Processes

_LOOKED = {"cpu": 1}
"""Steps between two reads of the loss, by device: other devices have to wait for a read."""
_SHARE = 20
"""Writing checkpoints takes at most one part in this many of the time."""


class Meter:
    """The mean training loss of an epoch, from losses that are read every few steps."""

    def __init__(self, team: Processes, checkpoint: Checkpoint | None) -> None:
        self._team = team
        self._every = _LOOKED.get(team.device.type, 25)
        self._waiting: list[tuple[int, Tensor]] = []
        self._sum, self._count = 0.0, 0
        if checkpoint is not None:
            held = checkpoint.plain["sums"]
            if len(held) == team.world:
                self._sum, self._count = held[team.rank]
            elif team.first:  # the number of processes has changed
                self._sum = math.fsum(part[0] for part in held)
                self._count = sum(part[1] for part in held)

    def add(self, step: int, loss: Tensor, diverged: Callable[[int, float], Exception]) -> None:
        """Store the loss of a step, and read all stored losses once there are enough."""
        self._waiting.append((step, loss))
        if len(self._waiting) >= self._every:
            self.look(diverged)

    def look(self, diverged: Callable[[int, float], Exception]) -> None:
        """Read all stored losses; raises an error at the first one that is not finite."""
        for step, loss in self._waiting:
            value = loss.item()
            if not math.isfinite(value):
                raise diverged(step, value)
            self._sum, self._count = self._sum + value, self._count + 1
        self._waiting.clear()

    def mean(self) -> float:
        """The mean loss over all steps and processes since the last epoch."""
        sums = self._team.gathered(self.sums())
        return math.fsum(part[0] for part in sums) / sum(part[1] for part in sums)

    def sums(self) -> tuple[float, int]:
        """The sum and the count of this process's losses, for a checkpoint."""
        return self._sum, self._count

    def forget(self) -> None:
        """Reset the mean for the next epoch."""
        self._sum, self._count = 0.0, 0


class Clock:
    """Measures when the next checkpoint is due and how long an epoch took."""

    def __init__(self, every: float) -> None:
        self._every, self._cost = every, 0.0
        self._last = self._lap = time.monotonic()
        self._work = time.process_time()

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        if not self._every:
            return True
        return time.monotonic() - self._last >= max(self._every, _SHARE * self._cost)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure the time that writing a checkpoint takes inside the block."""
        begun = time.monotonic()
        yield
        self._last = time.monotonic()
        self._cost = self._last - begun

    def lap(self) -> dict[str, Any]:
        """Elapsed time and processor time since the last lap."""
        now, work = time.monotonic(), time.process_time()
        seconds, worked = now - self._lap, work - self._work
        self._lap, self._work = now, work
        return {
            "seconds": round(seconds, 3),
            "processor_seconds": round(worked, 3),
            "machine": platform.node(),
        }
