"""``retinoscope advise``: where attention should go in a CNN."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from retinoscope.cli.options import AllowPickle, Size, Untrained, Weights, how_many


def advise(
    model: Annotated[
        str,
        Argument(
            help="A CNN: a timm name, [cyan]torchvision:NAME[/], [cyan]hf:FOLDER_OR_NAME[/], "
            "[cyan]path/file.py:function[/], or a file that was built before.",
            metavar="MODEL",
        ),
    ],
    data: Annotated[
        str, Option(help="What to show it: a folder, a table, a name. See: retinoscope list data")
    ] = "cues",
    images: Annotated[str, Option(help="How many images, or all.")] = "256",
    msas: Annotated[
        int,
        Option(help="Attention units to place at most: 4 for CIFAR in the paper, 6 for ImageNet."),
    ] = 4,
    root: Annotated[Path | None, Option(help="Where named data lie.")] = None,
    size: Size = None,
    untrained: Untrained = False,
    weights: Weights = None,
    seed: Annotated[int, Option(help="Of random weights and of the choice of images.")] = 0,
    batch: Annotated[int, Option(help="Images at a time.", min=1)] = 64,
    allow_pickle: AllowPickle = False,
) -> None:
    """Advise where attention should go: measure each stage's variance and propose a plan.

    The plan follows the build-up rule of Park & Kim (2022), in words and as the command that
    applies it.

    [dim]retinoscope advise resnet50 --data ./photos[/]
    """
    from retinoscope.cli.anatomy_table import parse_size
    from retinoscope.report.advise import advise as find_advice
    from retinoscope.run.progress import Reporter

    reporter = Reporter(Console(stderr=True))
    found = find_advice(
        model, data, msas=msas, images=how_many(images), root=root and str(root.absolute()),
        size=parse_size(size), pretrained=not untrained, seed=seed, batch=batch,
        weights=weights and str(weights.absolute()), allow_pickle=allow_pickle, reporter=reporter,
    )  # fmt: skip
    console = Console()
    table = Table(
        "stage", "units", "variance", "highest after", "attention", "why",
        box=None, padding=(0, 2, 0, 0), header_style="bold underline",
    )  # fmt: skip
    for stage in found.stages:
        table.add_row(
            str(stage.stage), str(stage.units), f"{stage.first:.3g} → {stage.last:.3g}",
            stage.peak, str(stage.msas), stage.reason,
        )  # fmt: skip
    console.print(table, "")
    if found.trained is False:
        console.print("The weights are untrained: measure a trained model to rely on this.")
    if found.written is None:
        console.print("The rule proposes nothing: the table says why, stage by stage.")
        return
    options = [
        *(["--untrained"] if untrained else []), *(["--weights", str(weights)] if weights else []),
        *(["--size", size] if size else []), *(["--seed", str(seed)] if seed else []),
    ]  # fmt: skip
    command = ["retinoscope", "build", model, "--apply", found.written, *options]
    console.print(
        shlex.join([*command, "--out", "alternet.safetensors"]),
        style="bold", highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
