"""``retinoscope train``: a recipe in, a trained model with its log and snapshots out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Exit, Option

from retinoscope.cli.next import examine_command
from retinoscope.cli.options import with_fields
from retinoscope.core.folders import safe_name
from retinoscope.core.specification import Specification
from retinoscope.recipes import parse_recipe
from retinoscope.run.specification import SubjectSpecification, check_asked
from retinoscope.train.recipe import Recipe, changed

_RECIPE = """Which recipe: [cyan]micro[/], [cyan]cifar_strong[/], [cyan]cifar_strong.original[/], …;
settings follow a colon ([cyan]cifar_strong:lr=0.001,mixup=0,sam=0.05[/]). See: retinoscope list
recipes"""


@with_fields(
    "changes", Recipe, "model", "data", "epochs", "batch", "seed", "size", "mean", "std",
    panel="Override the recipe",
    shown=dict.fromkeys(("model", "data", "epochs", "batch", "seed"), ""),
)  # fmt: skip
@with_fields(
    "machine", SubjectSpecification, "root", "workers", "device",
    panel="Options", shown={"workers": "cores - 1, 8 at most"},
)  # fmt: skip
def train(
    changes: dict[str, Any],
    machine: dict[str, Any],
    recipe: Annotated[str, Argument(help=_RECIPE, metavar="RECIPE")] = "micro",
    out: Annotated[
        Path | None, Option(help="Output folder. Default: runs/RECIPE-MODEL-DATA-SEED.")
    ] = None,
    track: Annotated[
        list[str] | None,
        Option(help="Also log to tensorboard, wandb or mlflow; may be repeated."),
    ] = None,
    checkpoint_every: Annotated[
        float, Option(help="Seconds between checkpoints: the most that a killed run loses.", min=0)
    ] = 60.0,
    until: Annotated[
        int | None,
        Option(help="Stop after this many steps; the same command resumes.", min=1),
    ] = None,
) -> None:
    """Train a model with a recipe; writes a log and snapshots (start, after warm-up, end).

    The same command resumes a training that was stopped and ends with bit-identical weights. A
    changed recipe needs a new folder. On several machines or GPUs:

    [dim]torchrun --nproc-per-node 4 -m retinoscope train imagenet_strong --model resnet50[/]

    [dim]retinoscope train cifar_strong --model vit_tiny_patch4_cifar --data cifar100 --seed 1[/]
    """
    named = Specification.parse(recipe, colons=False).name
    chosen = changed(parse_recipe(recipe), changes, named)
    check_asked([chosen.model], data=chosen.data, **machine)
    folder = out or _folder(named, chosen)
    from retinoscope.cli.training_table import LiveTable
    from retinoscope.train.trackers import get_tracker
    from retinoscope.train.train import train_model

    first = int(os.environ.get("RANK", "0")) == 0  # of those that torchrun starts
    machine.setdefault("workers", _spare_cores())
    console = Console(stderr=True)
    table = LiveTable(console)
    trackers = [get_tracker(name, table.say) for name in track or ()]
    listeners = [table, *trackers] if first else []
    try:
        done = train_model(
            chosen, folder, name=named, listeners=listeners, until=until,
            checkpoint_every=checkpoint_every, **machine,
        )  # fmt: skip
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on from the last checkpoint.")
        raise Exit(130) from None
    if first:
        _conclude(done)


def _conclude(done: Any) -> None:
    from retinoscope.report.build import build_report

    if done.end is None:
        sys.stdout.write("Not finished: the same command without --until goes on.\n")
        return
    sys.stdout.write(f"Learning curves: {build_report(done.folder)}\n")
    sys.stdout.write(f"Trained model: {done.end}\nNext: {examine_command(done.end)}\n")


def _folder(named: str, recipe: Any) -> Path:
    return Path("runs") / safe_name(f"{named}-{recipe.model}-{recipe.data}-seed{recipe.seed}")


def _spare_cores() -> int:
    return max(0, min(8, (os.cpu_count() or 1) - 1))
