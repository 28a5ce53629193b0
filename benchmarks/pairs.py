"""Two ways of doing one thing, timed in turns: A B A B …, so that a busy machine slows both."""

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
    """How long A takes in units of B: the median of interleaved pairs, and its quartiles."""

    median: float
    low: float
    high: float
    pairs: int
    seconds: tuple[float, float]
    """Median seconds of A and of B; they prove nothing, but tell what was measured."""

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Ratio:
        """From the seconds of each turn."""
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
        runs: What is timed; let each have run before.
        turns: How many times.
        clock: ``time.process_time`` counts what the CPU spends on this process alone.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(turns):
        for run, column in zip(runs, times, strict=True):
            start = clock()
            run()
            column.append(clock() - start)
    return times


def peer(module: str, package: str) -> Any:
    """A module of a library that is compared with; if it is missing, says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SystemExit(f"This compares with {module} ({error}): pip install {package}") from None


def asked(
    description: str | None, pairs: int, **options: Sequence[str] | int
) -> argparse.Namespace:
    """What the command line asks for; then one thread, and a line that says where this runs.

    Args:
        description: For ``--help``.
        pairs: How many, if nothing else is asked for.
        options: Further ones with their defaults: a number, or several words.
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
    """What a row without which is no measurement."""
    import timm

    return (
        f"threads {torch.get_num_threads()}, torch {torch.__version__}, timm {timm.__version__}, "
        f"python {platform.python_version()}, {platform.processor() or platform.machine()}"
    )


def verdict(met: bool) -> str:
    """The bar's outcome in one word."""
    return "met" if met else "MISSED"
