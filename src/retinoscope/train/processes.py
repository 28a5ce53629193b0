"""One or several training processes: torchrun starts them, DDP averages their gradients."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from retinoscope.core.errors import RetinoscopeError, WrongInput, first_line
from retinoscope.models.device import find_device

_PATIENCE = timedelta(minutes=30)
"""How long processes wait for each other; rank 0 may be reading images meanwhile."""


class LostProcess(RetinoscopeError):
    """Another process of a training has died."""


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the number of processes, and the device."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def check_share(self, batch: int) -> None:
        """Refuse a batch that cannot be divided evenly between the processes."""
        if batch % self.world:
            raise WrongInput(
                f"A batch of {batch} cannot be shared by {self.world} processes. Use a batch that "
                f"is a multiple of {self.world}."
            )

    def add(self, values: Tensor) -> Tensor:
        """The sum of a CPU tensor over all processes."""
        if self.world == 1:
            return values
        moved = values.to(self.device) if dist.get_backend() == "nccl" else values
        dist.all_reduce(moved)
        return moved.cpu()

    def told(self, value: Any) -> Any:
        """The value of the first process; the values of the others are ignored."""
        if self.world == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        if self.world == 1:
            return [value]
        held: list[Any] = [None] * self.world
        dist.all_gather_object(held, value)
        return held

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the first process's buffers, such as batch norm statistics, to all processes."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def joined(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over all processes."""
        if self.world == 1:
            return model
        ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)


@contextmanager
def processes(device: str | None) -> Iterator[Processes]:
    """The processes that torchrun has started; without torchrun, this one alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(device=find_device(device))
        return
    place = _place(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=_PATIENCE)
    rank = dist.get_rank()
    try:
        with _ended_by_torchrun(rank, world):
            yield Processes(rank, world, place)
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        raise _lost(rank, world, first_line(error)) from error
    finally:
        dist.destroy_process_group()


def _place(device: str | None, local: int) -> torch.device:
    """The device of one of several processes on a machine."""
    if device not in (None, "cuda", "cpu"):
        raise WrongInput(
            f"Several processes cannot share the device {device!r}. Say cuda, and each gets one of "
            "its own, or cpu."
        )
    if device == "cpu" or not torch.cuda.is_available():
        return find_device(device or "cpu")
    if local >= torch.cuda.device_count():
        raise WrongInput(
            f"There are {torch.cuda.device_count()} GPUs here, but torchrun has started process "
            f"{local + 1} on this machine. Use --nproc-per-node {torch.cuda.device_count()}."
        )
    return torch.device("cuda", local)


@contextmanager
def _ended_by_torchrun(rank: int, world: int) -> Iterator[None]:
    """Turn SIGTERM into an error inside the block: torchrun sends it when a process has died."""

    def end(number: int, frame: object) -> None:
        raise _lost(rank, world, "torchrun ends all of them.")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _lost(rank: int, world: int, why: str) -> LostProcess:
    return LostProcess(
        f"Process {rank} of {world} has lost another one: {why} It was killed or has failed; its "
        "own message says why. Start the same command again: the training goes on from its last "
        "checkpoint."
    )


def _is_loss(error: RuntimeError) -> bool:
    words = ("connection", "peer", "timed out", "timeout", "socket", "nccl", "gloo")
    return any(word in str(error).lower() for word in words)
