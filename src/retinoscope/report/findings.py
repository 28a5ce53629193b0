"""What a result says in words, by the name of its probe; others have their figures alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retinoscope.core.result import Result
from retinoscope.report.figures import number

_NAMED = 6
"""How many names of a list are written out."""


def findings(result: Result) -> list[str]:
    """Plain statements, what matters first; none where the probe brings none."""
    say = _SAID.get(result.probe)
    return say(result) if say else []


def _hessian(result: Any) -> list[str]:
    values, batches = int(np.isfinite(result.eigenvalues).sum()), len(result.eigenvalues)
    sure = result.trace_error is not None
    error = f" ± {number(result.trace_error)} (standard error)" if sure else ""
    said = [
        *_signs(result),
        f"found: {_count(values, 'eigenvalue')} of {_count(batches, 'mini-batch', 'es')}, from "
        f"{number(np.nanmin(result.eigenvalues))} to {number(np.nanmax(result.eigenvalues))}, by "
        f"{_count(result.products, 'product')} of Hessian and vector",
        f"the trace of the NLL's Hessian is {number(result.trace)}{error}",
        _decay(result),
    ]
    if result.left_out:
        said.append(
            f"{_count(len(result.left_out), 'tensor')} without a gradient took no part: "
            f"{_some(result.left_out)}"
        )
    if result.unfinished:
        said.append(
            f"{result.unfinished} of the eigenvalues had not converged when the products ran out: "
            "allow more of them"
        )
    return said


def _signs(result: Any) -> list[str]:
    if result.nep is None:
        return ["only one end of the spectrum was looked at, which gives neither NEP nor APE"]
    return [
        f"{_percent(result.nep)} of the eigenvalues of largest magnitude are negative (NEP"
        f"{_interval(result.nep_interval, _percent)})",
        "none of them is positive, so there is no mean of positive ones (APE)"
        if result.ape is None
        else f"the positive ones are {number(result.ape)} on average (APE"
        f"{_interval(result.ape_interval, number)})",
    ]


def _landscape(result: Any) -> list[str]:
    cells = _count(result.nll.size, "cell")
    holes = result.not_finite
    along = zip(("d", "e"), result.directions, strict=False)
    said = [
        f"the NLL at the weights themselves is {number(result.centre_nll)}, the accuracy "
        f"{_percent(result.centre_accuracy)}",
        f"{holes} of {cells} have a loss that is no finite number"
        if holes
        else f"the loss is finite in all {cells}",
        "; ".join(f"direction {letter}: {words}" for letter, words in along),
        f"{_count(result.moved, 'parameter')} move, {_count(len(result.kept), 'tensor')} stay as "
        f"they are{': ' if result.kept else ''}{_some(result.kept)}",
        _decay(result),
    ]
    return [words for words in said if words]


def _trajectory(result: Any) -> list[str]:
    if result.explained is None:
        return [f"the weights do not move over {_count(len(result.snapshots), 'snapshot')}"]
    first, second = result.explained
    said = [
        f"the plane holds {_percent(first + second)} of how the weights vary over "
        f"{_count(len(result.snapshots), 'snapshot')} ({_percent(first)} and {_percent(second)})"
        f"{'; three points always lie in a plane' * (len(result.snapshots) <= 3)}",
        f"the path is {number(result.path_length)} long, and {number(result.distance)} from its "
        f"first point to its last (straightness {_optional(result.straightness)}, where 1 is a "
        "straight line)",
    ]
    if result.turning is not None:
        said.append(f"its turns add up to {number(math.degrees(result.turning))}°")
    return [*said, _decay(result)]


_SAID: dict[str, Callable[[Any], list[str]]] = {
    "hessian": _hessian, "landscape": _landscape, "trajectory": _trajectory,
}  # fmt: skip


def _decay(result: Any) -> str:
    decay = result.weight_decay
    return f"weight decay {number(decay)} is part of the loss" if decay else "without weight decay"


def _percent(share: float) -> str:
    return f"{number(float(f'{100 * share:.3g}'))} %"


def _interval(ends: Sequence[float] | None, write: Callable[[float], str]) -> str:
    return f", 95 % interval {write(ends[0])} to {write(ends[1])}" if ends else ""


def _optional(value: float | None) -> str:
    return "unknown" if value is None else number(value)


def _count(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def _some(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
