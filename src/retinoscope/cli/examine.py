"""``retinoscope examine``: models in, a report out."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Context, Exit, Option
from typer.core import TyperCommand

from retinoscope.cli.options import MODEL, with_fields
from retinoscope.core.errors import WrongInput
from retinoscope.core.settings import RENAMED, hint
from retinoscope.core.specification import Specification
from retinoscope.probes import get_probe, list_probes
from retinoscope.recipes import parse_recipe
from retinoscope.run.specification import SubjectSpecification, check_asked
from retinoscope.workflows.presets import chosen

TOUR = ("micro_resnet", "micro_vit", "micro_alternet")
"""What is examined where no model is named: three small networks with packaged weights."""

_MODEL = f"""{MODEL}. [cyan]LABEL=NAME[/] gives a model a label. Default: three small networks
with packaged weights."""
_PRESET = """Which probes, on how many images: [cyan]quick[/] (forward passes only; the
default), [cyan]standard[/] (adds landscape, trajectory and hessian; minutes) or
[cyan]paper[/] (all images and mini-batches; hours). See: retinoscope list presets"""
_PROBE = """Measure this instead of what the preset says, or in addition to it if --preset is given;
may be repeated: [cyan]fourier[/], [cyan]hessian:k=10,batches=8[/], [cyan]./file.py:Class:k=3[/].
See: retinoscope list probes"""
_RECIPE = """Take augmentation and weight decay of the loss from this recipe. Default: as the
weights were trained, where that is known. See: retinoscope list recipes"""
_WORK = "Work"
_WORDS = "retinoscope.words"


class ExamineCommand(TyperCommand):
    """Knows the flags that probes once had, and says what to write instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse flags of earlier versions before the others are read."""
        refuse_old_flags(args)
        ctx.meta[_WORDS] = ["retinoscope", "examine", *args]
        return super().parse_args(ctx, args)


COMMAND = ExamineCommand


@with_fields(
    "subject", SubjectSpecification,
    "data", "images", "root", "size", "crop_pct", "crop_mode", "interpolation", "mean", "std",
    "pretrained", "weights", "output", "allow_pickle", "precision", "device", "passes",
)  # fmt: skip
@with_fields("work", SubjectSpecification, "seed", "batch", "workers")
def examine(
    context: Context,
    subject: dict[str, Any],
    models: Annotated[
        list[str] | None, Argument(help=_MODEL, metavar="MODEL", show_default=False)
    ] = None,
    recipe: Annotated[str | None, Option(help=_RECIPE, rich_help_panel="Model")] = None,
    preset: Annotated[str | None, Option(help=_PRESET, rich_help_panel=_WORK)] = None,
    probe: Annotated[list[str] | None, Option(help=_PROBE, rich_help_panel=_WORK)] = None,
    out: Annotated[
        Path | None,
        Option(help="The run folder. Default: runs/MODELS-DATA.", rich_help_panel=_WORK),
    ] = None,
    fresh: Annotated[
        bool,
        Option(
            "--fresh",
            help="Delete the results in the run folder and start over.",
            rich_help_panel=_WORK,
        ),
    ] = False,
    jobs: Annotated[
        int, Option(help="Number of worker processes.", min=1, rich_help_panel=_WORK)
    ] = 1,
    ray: Annotated[
        str | None,
        Option(help="Run on a Ray cluster: its address, auto or local.", rich_help_panel=_WORK),
    ] = None,
    *,
    work: dict[str, Any],
) -> None:
    """Show how models work: measure every unit, and end with a report to read.

    The time is estimated before work starts. The same command resumes a run that was stopped and
    repeats no finished work. Without a model, it examines three small packaged networks.

    [dim]retinoscope examine resnet50 vit_tiny_patch16_224 --data ./photos[/]

    [dim]retinoscope examine resnet50 --data ./photos --preset standard --probe hessian:k=3[/]
    """
    if "weights" in subject and len(models or ()) != 1:
        raise WrongInput(
            "--weights is a file for one model; name exactly one. For several, write each as "
            "MODEL:weights=FILE."
        )
    # What is wrong is said before torch is imported or anything is loaded.
    chosen(preset, probe)
    check_asked(models or TOUR, **subject, **work)
    loss = _loss(recipe)
    from retinoscope.run.progress import Reporter
    from retinoscope.workflows.examine import examine as run_examination

    console = Console(stderr=True)
    try:
        done = run_examination(
            models or list(TOUR), preset=preset, probes=probe, out=out, jobs=jobs, ray=ray,
            fresh=fresh, reporter=Reporter(console), command=context.meta[_WORDS],
            **subject, **work, **loss,
        )  # fmt: skip
    except KeyboardInterrupt:
        console.print(
            "Stopped. Finished work is kept and the page lists what is unfinished; the same "
            "command goes on from there."
        )
        raise Exit(130) from None
    for model, reason in done.failures:
        console.print(f"Not examined: {model}: {reason}", markup=False, style="red")
    sys.stdout.write(f"Report: {done.report}\n")
    if not done.measured:
        console.print("Nothing that was asked for could be measured; the reasons are above.")
        raise Exit(3)
    if done.failures:
        raise Exit(2)


def _loss(recipe: str | None) -> dict[str, Any]:
    """What a recipe says about the loss: how images are augmented, how weights decay."""
    if recipe is None:
        return {}
    asked = parse_recipe(recipe)
    return {"augmentation": asked.augmentation, "weight_decay": asked.weight_decay}


def refuse_old_flags(arguments: Sequence[str]) -> None:
    """Refuse ``--hessian-batches 4``: settings of probes are written behind their names.

    Example:
        >>> refuse_old_flags(["--hessian-batches", "4"])
        Traceback (most recent call last):
        retinoscope.core.errors.WrongInput: --hessian-batches is no longer a flag: settings follow \
the name of their probe. Write it as --probe hessian:batches=4 and name the other probes that you \
want with --probe as well.
    """
    old = {f"{name}-{one.name}".replace("_", "-"): (name, one.name)
           for name in list_probes() for one in fields(get_probe(name))}  # fmt: skip
    for (name, key), (before, now) in product(tuple(old.values()), RENAMED.items()):
        if key == now:
            old[f"{name}-{before}".replace("_", "-")] = name, now
    asked: dict[str, dict[str, Any]] = {}
    flags = []
    for index, argument in enumerate(arguments):
        found = re.fullmatch(r"--((?:no-)?[a-z0-9-]+)(?:=(.*))?", argument, re.DOTALL)
        flag = found[1].removeprefix("no-") if found else ""
        if found is None or flag not in old:
            continue
        flags.append(f"--{found[1]}")
        name, key = old[flag]
        asked.setdefault(name, {})[key] = _value(name, key, found, arguments[index + 1 :])
    if asked:
        written = [f"--probe {shlex.quote(str(Specification(*one)))}" for one in asked.items()]
        more = "is no longer a flag" if len(flags) == 1 else "are no longer flags"
        raise WrongInput(
            f"{', '.join(flags)} {more}: settings follow the name of their probe. Write it as "
            f"{' '.join(written)} and name the other probes that you want with --probe as well."
        )


def _value(name: str, key: str, flag: re.Match[str], following: Sequence[str]) -> Any:
    """What an old flag was given."""
    wanted = hint(get_probe(name), key)
    if wanted is bool:
        return not flag[1].startswith("no-")
    text = flag[2] if flag[2] is not None else next(iter(following), "…")
    try:
        return wanted(text) if wanted in (int, float) else text
    except ValueError:
        return text
