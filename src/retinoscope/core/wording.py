"""Formats numbers, counts, intervals and durations for axes, sentences and logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

_LISTED = 6
"""The number of names of a list that are written out."""


def number(value: float, digits: int = 4, signed: bool = False) -> str:
    """A number with the given number of significant digits; a dash if it is not finite.

    Example:
        >>> number(-1.23456), number(0.5, signed=True), number(float("nan"))
        ('−1.235', '+0.5', '–')
    """
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}.{digits}g}".replace("-", "−")


def plus_minus(error: float) -> str:
    """A standard error, to be appended to a number; empty if unknown.

    Example:
        >>> plus_minus(0.25), plus_minus(float("nan"))
        (' ± 0.25', '')
    """
    return f" ± {number(error)}" if math.isfinite(error) else ""


def axis_number(value: float) -> str:
    """An axis label; large values as powers of ten, so that they fit.

    Example:
        >>> axis_number(-1.5), axis_number(2.5e7), axis_number(1e-7)
        ('−1.5', '2.5e7', '1e−7')
    """
    short = f"{value:g}" if abs(value) < 1e5 else f"{value:.5g}"
    return short.replace("e+0", "e").replace("e+", "e").replace("e-0", "e−").replace("-", "−")


def percent(share: float) -> str:
    """A fraction as a percentage.

    Example:
        >>> percent(0.125)
        '12.5 %'
    """
    return f"{number(float(f'{100 * share:.3g}'))} %"


def count(n: int, noun: str, ending: str = "s") -> str:
    """A count with its noun in singular or plural.

    Example:
        >>> count(1, "batch", "es"), count(1200, "batch", "es")
        ('1 batch', '1,200 batches')
    """
    return f"{n:,} {noun}{'' if n == 1 else ending}"


def interval(ends: Sequence[float] | None, write: Callable[[float], str] = number) -> str:
    """A 95 % interval, to be appended to a number; empty if there is none.

    Example:
        >>> interval((0.1, 0.4), percent)
        ', 95 % interval 10 % to 40 %'
    """
    return f", 95 % interval {write(ends[0])} to {write(ends[1])}" if ends else ""


def weight_decay_words(decay: float) -> str:
    """Whether weight decay is part of a loss.

    Example:
        >>> weight_decay_words(0.05), weight_decay_words(0.0)
        ('weight decay 0.05 is part of the loss', 'without weight decay')
    """
    return f"weight decay {number(decay)} is part of the loss" if decay else "without weight decay"


def nll_words(nll: float) -> str:
    """A mean negative log-likelihood in words.

    Example:
        >>> nll_words(2.3126)
        'an NLL of 2.31'
    """
    return f"an NLL of {number(nll, 3)}"


def assumed_words(model: str, assumed: Sequence[str]) -> str:
    """One line about assumptions on a model's images, and how to set them.

    Example:
        >>> assumed_words("net.py:build", ["size 32×32 (read from the network)"])
        'net.py:build does not specify its image preprocessing. Assumed: size 32×32 (read from the \
network). To change it: --size (in Python size=…)'
    """
    names = [name for name in ("size", "mean", "std") if any(name in one for one in assumed)]
    flags = ", ".join(f"--{name}" for name in names)
    words = ", ".join(f"{name}=…" for name in names)
    return (
        f"{model} does not specify its image preprocessing. Assumed: {'; '.join(assumed)}. To "
        f"change it: {flags} (in Python {words})"
    )


def listed(names: Sequence[str]) -> str:
    """The first names of a list, and the number of remaining ones.

    Example:
        >>> listed("abcdefgh")
        'a, b, c, d, e, f and 2 more'
    """
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def shortened(name: str, most: int) -> str:
    """A name shortened to about ``most`` characters; its end is kept, where names differ most.

    Example:
        >>> shortened("stages.0.blocks.11.attn", 12)
        'stages…1.attn'
    """
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    Example:
        >>> duration(0.34), duration(42), duration(150), duration(7500), duration(200_000)
        ('0.3 s', '42 s', '2 min 30 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    sizes = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, unit), (smaller, name) in pairwise(sizes):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"
