"""Estimates how long an examination takes, and orders its parts by cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from retinoscope.core.wording import duration
from retinoscope.probes import write_probe
from retinoscope.run.estimate import Pass
from retinoscope.run.plan import Plan
from retinoscope.workflows.cheaper import LONG, cheaper_command

_CHEAP = 60.0
"""Passes of at most this many seconds are run together, model by model."""
_PAGE = 0.5
"""Seconds to allow per model for writing the report."""


def rounds(plans: Sequence[Plan]) -> Iterator[tuple[Plan, list[Pass]]]:
    """Yield the passes to run next, until none is left.

    The fast passes of all models come first, model by model; then the others, the fastest first,
    each for all models before the next. A pass of unknown duration is treated as slow.
    """
    dearest: dict[str, float] = {}
    for plan in plans:
        for one in plan.passes:
            seconds = float("inf") if one.seconds is None else one.seconds
            dearest[one.names] = max(dearest.get(one.names, 0.0), seconds)
    cheap = {names for names, seconds in dearest.items() if seconds <= _CHEAP}
    for plan in plans:
        own = [one for one in plan.passes if one.names in cheap]
        if own:
            yield plan, sorted(own, key=lambda one: one.seconds or 0.0)
    for names in sorted(dearest.keys() - cheap, key=lambda names: dearest[names]):
        for plan in plans:
            own = [one for one in plan.passes if one.names == names]
            if own:
                yield plan, own


def say_forecast(
    plans: Sequence[Plan],
    spent: float,
    say: Callable[[str], None],
    command: Sequence[str] = (),
    preset: str | None = None,
) -> None:
    """Print the estimated time per probe and in total; if long, also a cheaper command.

    Args:
        plans: The plan of each model.
        spent: Seconds that loading has taken.
        say: Prints a line of text.
        command: The words of the command line, if any.
        preset: The preset to measure, if any.
    """
    lines = _lines(plans)
    if not lines:
        return
    known = [one.seconds for plan in plans for one in plan.passes if one.seconds is not None]
    left = sum(known) + _PAGE * len(plans)
    unknown = any(one.seconds is None for plan in plans for one in plan.passes)
    say(
        f"Estimated time on this machine: {'more than ' * unknown}{duration(spent + left)} in "
        f"total, including {duration(spent)} for loading"
    )
    for line in lines:
        say(f"  {line}")
    if left > LONG:
        say(f"That is more than ten minutes. Cheaper: {_cheaper(plans, command, preset)}")


def _lines(plans: Sequence[Plan]) -> list[str]:
    """One line per pass: its probes, and the time for each model."""
    times: dict[str, list[str]] = {}
    for plan in plans:
        for one in plan.passes:
            known = "unknown" if one.seconds is None else duration(one.seconds)
            times.setdefault(one.names, []).append(f"{plan.subject.name} {known}")
    return [
        f"{names}{' (one pass)' * (', ' in names)}: {', '.join(each)}"
        for names, each in times.items()
    ]


def _cheaper(plans: Sequence[Plan], command: Sequence[str], preset: str | None) -> str:
    """A command, or a Python call, that takes less time."""
    if not command:
        return "preset='quick', fewer images=…, or cheaper settings of the probes"
    seconds: dict[str, float] = {}
    for plan in plans:
        for one in plan.passes:
            for job in one.jobs:
                name = write_probe(job.probe)
                share = (one.seconds or 0.0) / len(one.jobs)
                seconds[name] = seconds.get(name, 0.0) + share
    images = max(
        (len(split) for plan in plans for split in plan.subject.splits.values()), default=1
    )
    return cheaper_command(command, seconds, images, preset)
