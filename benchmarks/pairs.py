"""Two ways of doing one thing, timed in turns: A B A B …, so that a busy machine slows both."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ratio:
    """How long A takes in units of B: the median of interleaved pairs, and its quartiles."""

    median: float
    low: float
    high: float
    pairs: int
    seconds: tuple[float, float]
    """Median seconds of A and of B; they prove nothing, but tell what was measured."""

    def __str__(self) -> str:
        a, b = self.seconds
        return (
            f"{self.median:.3f} (quartiles {self.low:.3f}–{self.high:.3f}, {self.pairs} pairs, "
            f"{a:.3f} s / {b:.3f} s)"
        )


def time_pairs(a: Callable[[], object], b: Callable[[], object], pairs: int = 15) -> Ratio:
    """Run both once to warm up, then in turns."""
    a(), b()
    times = [(_seconds(a), _seconds(b)) for _ in range(pairs)]
    low, median, high = statistics.quantiles([x / y for x, y in times], n=4)
    middle = tuple(statistics.median(column) for column in zip(*times, strict=True))
    return Ratio(median, low, high, pairs, (middle[0], middle[1]))


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def asked(description: str | None, pairs: int, **lists: Sequence[str]) -> argparse.Namespace:
    """What the command line asks for; then one thread, and a line that says where this runs.

    Args:
        description: For ``--help``.
        pairs: How many, if nothing else is asked for.
        lists: Further options that take several words, with their defaults.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=pairs)
    for name, default in lists.items():
        parser.add_argument(f"--{name}", nargs="*", default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    return arguments


def machine() -> str:
    """What a row without which is no measurement."""
    import timm

    return (
        f"threads {torch.get_num_threads()}, torch {torch.__version__}, timm {timm.__version__}, "
        f"python {platform.python_version()}, {platform.processor() or platform.machine()}"
    )


def verdict(met: bool) -> str:
    """The bar's outcome in one word."""
    return "met" if met else "MISSED"
