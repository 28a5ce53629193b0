"""Peak memory of the tensors that a function allocates, as torch's profiler records them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile


def peak(run: Callable[[], object]) -> float:
    """The peak in MiB above what is allocated before; the function runs once to fill caches."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    results = recorded.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    changes = [event for event in results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in changes), default=0) / 2**20
