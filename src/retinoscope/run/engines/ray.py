"""Executes tasks on a Ray cluster, for work that is too large for one machine.

Ray repeats the unfinished tasks of a lost machine on another one. retinoscope must be installed
on all machines, and the files that the subject names must exist there under the same paths.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retinoscope.core.errors import RetinoscopeError, first_line
from retinoscope.core.subject import Subject
from retinoscope.run.engines.remote import order, work
from retinoscope.run.task import Outcome, Task

_AHEAD = 4
"""Tasks in flight per core: enough to keep every worker busy, few enough to lose little."""


_KNOCK = 10.0
"""Seconds to wait for a response from the cluster's address."""


@dataclass(frozen=True)
class OnRay:
    """An engine on the cluster at ``address``: ``auto``, ``host:6379``, or ``local`` (new)."""

    address: str

    def run(self, subject: Subject, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Execute every task once; yields each as it finishes. Repeats tasks of dead workers."""
        todo = [(order(subject, task, f"--ray {self.address}"), task) for task in reversed(tasks)]
        try:
            import ray
            from ray.exceptions import RayError, RayTaskError
        except ImportError:
            raise RetinoscopeError(
                "--ray needs the package ray. Install it with: pip install 'retinoscope[ray]'"
            ) from None
        started = self._connect()
        try:
            # A worker process keeps the subject it has built; max_retries=-1: retry after every
            # loss.
            remote = ray.remote(num_cpus=1, max_retries=-1)(work)
            waiting: dict[object, Task] = {}
            limit = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while todo or waiting:
                while todo and len(waiting) < limit:
                    one, task = todo.pop()
                    waiting[remote.remote(one)] = task
                (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
                try:
                    outcome = ray.get(ready)
                except RayTaskError as error:
                    raise error.as_instanceof_cause() from None
                except RayError as error:
                    raise RetinoscopeError(
                        f"The Ray cluster {self.address} failed: {first_line(error)} Finished "
                        "pieces are kept: run the same command again."
                    ) from error
                yield waiting.pop(ready), outcome
        finally:
            if started:
                ray.shutdown()

    def _connect(self) -> bool:
        """Connect if necessary; returns whether a connection was opened and so must be closed."""
        import ray

        if ray.is_initialized():
            return False
        address = None if self.address == "local" else self.address
        try:
            _check_reachable(self.address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise RetinoscopeError(
                f"Cannot connect to a Ray cluster at {self.address!r}: {first_line(error)} Start "
                "one with `ray start --head`, or use --ray local for one on this machine."
            ) from error
        return True


def _check_reachable(address: str) -> None:
    """Try to open a connection first: Ray itself waits for minutes if nothing responds."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK).close()
