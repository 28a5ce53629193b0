"""``retinoscope advise``: where attention should go in a CNN."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from retinoscope.cli.options import MODEL, with_fields
from retinoscope.core.specification import split_label
from retinoscope.run.specification import SubjectSpecification, check_asked

_IMAGES = 256
"""How many suffice for variances."""


@with_fields(
    "subject", SubjectSpecification,
    "data", "images", "root", "size", "mean", "std", "pretrained", "weights",
    "allow_pickle", "seed", "batch",
    panel="Options", shown={"images": str(_IMAGES)},
)  # fmt: skip
def advise(
    subject: dict[str, Any],
    model: Annotated[str, Argument(help=f"A CNN. {MODEL}", metavar="MODEL")],
    msas: Annotated[
        int,
        Option(help="Maximum number of attention units: 4 for CIFAR in the paper, 6 for ImageNet."),
    ] = 4,
) -> None:
    """Advise where attention should go: measure each stage's variance and propose a plan.

    The plan follows the build-up rule of Park & Kim (2022), in words and as the command that
    applies it.

    [dim]retinoscope advise resnet50 --data ./photos[/]
    """
    check_asked([model], **subject)
    from retinoscope.run.progress import Reporter
    from retinoscope.workflows.advise import advise as find_advice

    reporter = Reporter(Console(stderr=True))
    found = find_advice(model, msas=msas, reporter=reporter, **{"images": _IMAGES} | subject)
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
    named = split_label(model)[1]
    command = ["retinoscope", "build", named, "--apply", found.written, *_repeated(subject)]
    console.print(
        shlex.join([*command, "--out", "alternet.safetensors"]),
        style="bold", highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _repeated(subject: dict[str, Any]) -> list[str]:
    """The flags with which another command builds the same model."""
    height, width = subject.get("size", (0, 0))
    given = {
        "--weights": subject.get("weights"),
        "--size": height and (f"{height}" if height == width else f"{height}x{width}"),
        "--mean": ",".join(map(str, subject.get("mean", ()))),
        "--std": ",".join(map(str, subject.get("std", ()))),
        "--seed": subject.get("seed"),
    }
    untrained = ["--untrained"] if not subject.get("pretrained", True) else []
    return [*untrained, *(word for flag, v in given.items() if v for word in (flag, str(v)))]
