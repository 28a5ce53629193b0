"""Executes tasks in several processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.subject import Subject
from retinoscope.run.engines.remote import order, work
from retinoscope.run.task import Outcome, Task


@dataclass(frozen=True)
class InProcesses:
    """An engine with ``jobs`` processes that share the cores."""

    jobs: int

    def run(self, subject: Subject, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Execute every task once; yields them in the order in which they finish."""
        orders = [(order(subject, task, f"--jobs {self.jobs}"), task) for task in tasks]
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        pool = ProcessPoolExecutor(
            min(self.jobs, len(tasks)),
            multiprocessing.get_context("spawn"),
            initializer=_limit_threads,
            initargs=(threads,),
        )
        try:
            waiting = {pool.submit(work, one): task for one, task in orders}
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BrokenProcessPool as error:
            raise RetinoscopeError(
                "A worker process died, perhaps because memory ran out. Finished pieces are kept: "
                "run the same command again with fewer --jobs or a smaller --batch. (A script "
                "that uses jobs must call retinoscope under `if __name__ == '__main__':`.)"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _limit_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
