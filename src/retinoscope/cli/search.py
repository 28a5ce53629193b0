"""``retinoscope search``: where attention pays in a CNN, found by training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Exit, Option

from retinoscope.cli.next import examine_command
from retinoscope.cli.options import MODEL, with_fields
from retinoscope.core.folders import safe_name
from retinoscope.core.specification import Specification
from retinoscope.core.wording import duration
from retinoscope.recipes import parse_recipe
from retinoscope.run.specification import SubjectSpecification, check_asked
from retinoscope.train.recipe import Recipe, changed

if TYPE_CHECKING:
    from retinoscope.train.search.search import Search, Tried

_EVERY = 10.0
"""Seconds between two lines about epochs."""


@with_fields(
    "changes", Recipe, "data", "size", "mean", "std",
    panel="Override the recipe", shown={"data": ""},
)  # fmt: skip
@with_fields("machine", SubjectSpecification, "root", "workers", "device", panel="Options")
def search(
    model: Annotated[
        str, Argument(help=f"A CNN; its weights are not used. {MODEL}", metavar="MODEL")
    ],
    changes: dict[str, Any],
    recipe: Annotated[
        str,
        Option(
            help="How to train each candidate: [cyan]name:key=value,key=value[/]. "
            "See: retinoscope list recipes"
        ),
    ] = "micro",
    seeds: Annotated[
        int, Option(help="Training runs (seeds) per candidate; their mean decides.", min=1)
    ] = 3,
    out: Annotated[
        Path | None, Option(help="Output folder. Default: runs/search-RECIPE-MODEL-DATA.")
    ] = None,
    most: Annotated[
        int | None,
        Option(
            help="Maximum number of attention units: 4 for CIFAR in the paper, 6 for ImageNet. "
            "Default: as many as raise accuracy.",
            min=1,
        ),
    ] = None,
    grow: Annotated[
        bool, Option("--grow", help="Add units if alternation leaves no room for the last one.")
    ] = False,
    jobs: Annotated[int, Option(help="Seeds trained in parallel, each on one core.", min=1)] = 1,
    *,
    machine: dict[str, Any],
) -> None:
    """Search for the units of a CNN that should become attention, by training candidates.

    Starting at the end of the last stage, one convolutional unit at a time is replaced by
    attention. A replacement that raises accuracy is kept; otherwise the search continues at the end
    of the previous stage (Park & Kim, 2022, fig. 12a).

    Candidates are compared on held-out training images; test accuracy is only reported. Differences
    smaller than the deviation over seeds are noise: use more --seeds. The same command resumes a
    search that was stopped.

    [dim]retinoscope search micro_resnet --recipe micro:epochs=4 --seeds 3 --jobs 2 --out
    runs/where[/]
    """
    named = Specification.parse(recipe, colons=False).name
    chosen = changed(parse_recipe(recipe), changes, named)
    check_asked([model], data=chosen.data, **machine)
    from retinoscope.plots.search import draw
    from retinoscope.train.search.search import search as run_search

    folder = out or Path("runs") / safe_name(f"search-{named}-{model}-{chosen.data}")
    console = Console(stderr=True)
    try:
        found = run_search(
            model, chosen, folder, seeds=seeds, most=most, grow=grow, name=named, jobs=jobs,
            listener=Progress(console), **machine,
        )  # fmt: skip
    except KeyboardInterrupt:
        console.print("Stopped. What was finished is kept: the same command goes on from there.")
        raise Exit(130) from None
    draw(found, folder / "search.svg")
    _conclude(Console(), found, folder)


def _conclude(console: Console, found: Search, out: Path) -> None:
    table = Table(
        "attention per stage", "in all", "parameters", "held out", "test", "",
        box=None, padding=(0, 2, 0, 0), header_style="bold underline",
    )  # fmt: skip
    for place, plan in enumerate(found.plans):
        verdict = "kept" if found.kept[place] else "no better"
        table.add_row(
            _written(plan), str(found.msas[place]), f"{found.parameters[place]:,}",
            _share(found.held_out_mean[place], found.held_out_deviation[place]),
            _share(found.test_mean[place], found.test_deviation[place]),
            verdict if any(plan) else "as it was",
        )  # fmt: skip
    console.print(table, "")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if not any(found.winner):
        say("No attention unit raised accuracy: the best network is the unchanged one.")
    say(f"Figure: {out / 'search.svg'}")
    say(f"Best network: {out / 'winner.safetensors'} (seed {found.winner_seed})")
    say(f"Next: {examine_command(out / 'winner.safetensors')}")


class Progress:
    """Tells a person which candidate is trained, how far it is, and how long it will take."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._at_most = self._epochs = self._number = self._done = 0
        self._begun = self._said = clock()
        self._new = 0

    def begin(self, at_most: int, epochs: int) -> None:
        """Say how much can come."""
        self._at_most, self._epochs = at_most, epochs
        self._begun = self._said = self._clock()
        self.say(f"{at_most} candidates at most, {epochs} epochs each over all seeds")

    def candidate(self, number: int, plan: tuple[int, ...], done: int) -> None:
        """Say which one begins."""
        self._number, self._done = number, done
        before = f", {done} of {self._epochs} epochs were done before" * bool(done)
        self.say(f"candidate {number}: {_written(plan)}{before}")

    def epoch(self, seed: int, row: Mapping[str, Any], before: bool) -> None:
        """Say how far it is, every few seconds."""
        self._done += row["epoch"] > 0
        self._new += not before
        now = self._clock()
        if before or now - self._said < _EVERY:
            return
        self._said = now
        each = (now - self._begun) / self._new
        here = self._epochs - self._done
        left = here + (self._at_most - self._number) * self._epochs
        self.say(
            f"  seed {seed}, epoch {row['epoch']}, accuracy {100 * row['accuracy']:.2f} %: "
            f"{self._done} of {self._epochs} epochs, {duration(each * here)} left; "
            f"for all that can come {duration(each * left)}"
        )

    def scored(self, tried: Tried) -> None:
        """Say what came out."""
        verdict = "kept" if tried.kept else "no better"
        self.say(f"  held out {100 * tried.score:.2f} %, {verdict}")

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _written(plan: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, plan))})"


def _share(mean: float, deviation: float) -> str:
    if math.isnan(mean):
        return "-"
    spread = "" if math.isnan(deviation) else f" ± {100 * deviation:.2f}"
    return f"{100 * mean:.2f}{spread} %"
