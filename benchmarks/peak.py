"""Peak memory of a function in this process, above what is in use before; Linux only."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(run: Callable[[], object]) -> float:
    """The peak in MiB; the function runs once before, so that caches are filled."""
    run()
    gc.collect()
    _RESET.write_text("5")  # sets the highest value so far to the current one
    before = _kibibytes("VmRSS")
    run()
    return (_kibibytes("VmHWM") - before) / 1024


def _kibibytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
