"""Time two functions in turns, A B A B …, so that a busy machine slows both down."""

from __future__ import annotations

import argparse
import importlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Ratio:
    """The time of A relative to B: median and quartiles over interleaved pairs."""

    median: float
    low: float
    high: float
    pairs: int
    seconds: tuple[float, float]
    """Median seconds of A and of B, only for orientation."""

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Ratio:
        """The ratio from the seconds of each turn."""
        low, median, high = statistics.quantiles([x / y for x, y in zip(a, b, strict=True)], n=4)
        return cls(median, low, high, len(a), (statistics.median(a), statistics.median(b)))

    def __str__(self) -> str:
        a, b = self.seconds
        return (
            f"{self.median:.3f} (quartiles {self.low:.3f}–{self.high:.3f}, {self.pairs} pairs, "
            f"{a:.3f} s / {b:.3f} s)"
        )


def time_pairs(a: Callable[[], object], b: Callable[[], object], pairs: int = 15) -> Ratio:
    """Run both once to warm up, then in turns."""
    a(), b()
    return Ratio.of(*take_turns((a, b), pairs))


def take_turns(
    runs: Sequence[Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """The seconds of each run in each turn, A B C A B C and so on.

    Args:
        runs: The functions to time; each should have run once before.
        turns: Number of turns.
        clock: Use ``time.process_time`` to count only the CPU time of this process.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(turns):
        for run, column in zip(runs, times, strict=True):
            start = clock()
            run()
            column.append(clock() - start)
    return times


def peer(module: str, package: str) -> Any:
    """A module of a library to compare with; if it is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SystemExit(f"This needs {module} ({error}). Install: pip install {package}") from None


def asked(
    description: str | None, pairs: int, **options: Sequence[str] | int
) -> argparse.Namespace:
    """Parse the command line, limit torch to one thread, and print the machine.

    Args:
        description: Text for ``--help``.
        pairs: Default number of pairs.
        options: Further options with their defaults: a number, or several words.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=pairs)
    for name, default in options.items():
        if isinstance(default, int):
            parser.add_argument(f"--{name}", type=int, default=default)
        else:
            parser.add_argument(f"--{name}", nargs="*", default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    return arguments


def machine() -> str:
    """Threads, versions and processor, which belong to every measurement."""
    import timm

    return (
        f"threads {torch.get_num_threads()}, torch {torch.__version__}, timm {timm.__version__}, "
        f"python {platform.python_version()}, {platform.processor() or platform.machine()}"
    )


def verdict(met: bool) -> str:
    """Whether a bar is met, in one word."""
    return "met" if met else "MISSED"
