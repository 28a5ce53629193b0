"""How long an examination will take, and in which order its parts come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from retinoscope.core.wording import duration
from retinoscope.probes import write_probe
from retinoscope.run.estimate import Pass
from retinoscope.run.plan import Plan
from retinoscope.workflows.cheaper import LONG, cheaper_command

_CHEAP = 60.0
"""Seconds up to which a pass is done together with the other cheap ones of its model."""
_PAGE = 0.5
"""Seconds to allow for writing the page, for each model."""


def rounds(plans: Sequence[Plan]) -> Iterator[tuple[Plan, list[Pass]]]:
    """What to do next, until nothing is left.

    First come the cheap passes of all models, model by model; then the others, the cheapest first,
    each for all models before the next. A pass whose time is not known counts as dear.
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
    """Say how long each probe will take and all together; above ten minutes, what is cheaper.

    Args:
        plans: What is to be measured of each model.
        spent: Seconds that loading has taken.
        say: Takes a line of text.
        command: The words of the command line, if there is one.
        preset: The preset that is measured, if it is one.
    """
    lines = _lines(plans)
    if not lines:
        return
    known = [one.seconds for plan in plans for one in plan.passes if one.seconds is not None]
    left = sum(known) + _PAGE * len(plans)
    unknown = any(one.seconds is None for plan in plans for one in plan.passes)
    say(
        f"Estimated time on this machine: {'more than ' * unknown}{duration(spent + left)} in all, "
        f"of which {duration(spent)} went into loading"
    )
    for line in lines:
        say(f"  {line}")
    if left > LONG:
        say(f"That is over ten minutes. Cheaper: {_cheaper(plans, command, preset)}")


def _lines(plans: Sequence[Plan]) -> list[str]:
    """A line for each pass: its probes, and the time for each model."""
    times: dict[str, list[str]] = {}
    for plan in plans:
        for one in plan.passes:
            known = "not known" if one.seconds is None else duration(one.seconds)
            times.setdefault(one.names, []).append(f"{plan.subject.name} {known}")
    return [
        f"{names}{' (one pass)' * (', ' in names)}: {', '.join(each)}"
        for names, each in times.items()
    ]


def _cheaper(plans: Sequence[Plan], command: Sequence[str], preset: str | None) -> str:
    """A command, or a call in Python, that takes less time."""
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
