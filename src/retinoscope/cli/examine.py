"""``retinoscope examine``: models in, a report out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Exit, Option

from retinoscope.cli.settings import probes_with, with_settings

TOUR = ("micro_resnet", "micro_vit", "micro_alternet")
"""What is examined where no model is named: three small networks whose weights come along."""

_MODEL = """Timm names, [cyan]torchvision:NAME[/], [cyan]hf:FOLDER_OR_NAME[/],
[cyan]path/file.py:function[/]; options behind a colon ([cyan]resnet50:num_classes=10[/]). Without
any: a tour of three small networks whose weights come along."""
_DATA = """[cyan]cues[/] (embedded), [cyan]cifar10[/], [cyan]cifar100[/], [cyan]imagenet[/], a
folder of photos or of class folders, a [cyan].parquet[/] file, [cyan]hf:NAME[/]. See: retinoscope
list data"""
_IMAGES = "images"
_MODELS = "model"
_WORK = "work"


@with_settings
def examine(
    settings: dict[str, Any],
    models: Annotated[
        list[str] | None, Argument(help=_MODEL, metavar="MODEL", show_default=False)
    ] = None,
    data: Annotated[str, Option(help=_DATA, rich_help_panel=_IMAGES)] = "cues",
    images: Annotated[
        str, Option(help="How many, the same from each class; or all.", rich_help_panel=_IMAGES)
    ] = "512",
    root: Annotated[
        Path | None,
        Option(help="Where data are looked for; else RETINOSCOPE_DATA.", rich_help_panel=_IMAGES),
    ] = None,
    size: Annotated[
        str | None,
        Option(
            help="224, or 224x160 (height x width); else the model's own.", rich_help_panel=_IMAGES
        ),
    ] = None,
    crop_pct: Annotated[
        float | None,
        Option(
            help="Share of the shorter side that is kept; else the model's own.",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    crop_mode: Annotated[
        str | None,
        Option(help="center, squash or border; else the model's own.", rich_help_panel=_IMAGES),
    ] = None,
    interpolation: Annotated[
        str | None,
        Option(help="nearest, bilinear or bicubic; else the model's own.", rich_help_panel=_IMAGES),
    ] = None,
    mean: Annotated[
        str | None,
        Option(
            help="Of the normalisation: 0.5 or 0.49,0.48,0.45; else the model's.",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    std: Annotated[
        str | None, Option(help="The same for the deviation.", rich_help_panel=_IMAGES)
    ] = None,
    untrained: Annotated[
        bool,
        Option(
            "--untrained",
            help="Random weights by --seed instead of published ones.",
            rich_help_panel=_MODELS,
        ),
    ] = False,
    weights: Annotated[
        Path | None,
        Option(help="A .safetensors or .pth file, for a single model.", rich_help_panel=_MODELS),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            help="Entry of a dict or tuple output that holds the logits.", rich_help_panel=_MODELS
        ),
    ] = None,
    allow_pickle: Annotated[
        bool,
        Option(
            "--allow-pickle",
            help="Read a .pth file that runs code. Only if you trust it.",
            rich_help_panel=_MODELS,
        ),
    ] = False,
    recipe: Annotated[
        str | None,
        Option(
            help="Take the loss as in a training by this recipe: its augmentation and weight "
            "decay. Else as the weights were trained, where that is known. See: retinoscope list "
            "recipes",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    precision: Annotated[
        str, Option(help="float32, float64, bfloat16 or float16.", rich_help_panel=_MODELS)
    ] = "float32",
    device: Annotated[
        str | None,
        Option(help="cuda, cuda:1, mps, cpu; else the best there is.", rich_help_panel=_MODELS),
    ] = None,
    probe: Annotated[
        list[str] | None,
        Option(
            help="What to measure, once for each; else everything. See: retinoscope list probes",
            rich_help_panel=_WORK,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="The run folder; else one under runs/ by the names given.", rich_help_panel=_WORK
        ),
    ] = None,
    fresh: Annotated[
        bool,
        Option("--fresh", help="Start over: forget what the folder holds.", rich_help_panel=_WORK),
    ] = False,
    seed: Annotated[
        int, Option(help="Of random weights and of the choice of images.", rich_help_panel=_WORK)
    ] = 0,
    batch: Annotated[int, Option(help="Images at a time.", min=1, rich_help_panel=_WORK)] = 64,
    workers: Annotated[
        int, Option(help="Processes that read images.", min=0, rich_help_panel=_WORK)
    ] = 0,
    jobs: Annotated[int, Option(help="Processes that measure.", min=1, rich_help_panel=_WORK)] = 1,
    ray: Annotated[
        str | None,
        Option(help="Measure on a Ray cluster: its address, auto or local.", rich_help_panel=_WORK),
    ] = None,
) -> None:
    """Show how models work: measure every unit, and end with a report to read.

    The same command goes on where it was stopped, and does nothing twice. Give it no model for a
    first look.

    [dim]retinoscope examine resnet50 vit_tiny_patch16_224 --data ./photos --images 256[/]
    """
    from retinoscope.cli.anatomy_table import parse_size
    from retinoscope.cli.options import as_numbers, how_many
    from retinoscope.core.errors import WrongInput
    from retinoscope.report.examine import examine as run_examination
    from retinoscope.run.progress import Reporter

    if weights and len(models or ()) != 1:
        raise WrongInput("--weights is a file for one model; name exactly one.")
    probes = probes_with(probe, settings)
    console = Console(stderr=True)
    try:
        done = run_examination(
            models or list(TOUR), data, probes=probes, out=out, jobs=jobs, ray=ray, fresh=fresh,
            reporter=Reporter(console), images=how_many(images), root=root and str(root.absolute()),
            size=parse_size(size), crop_pct=crop_pct, crop_mode=crop_mode,
            interpolation=interpolation, mean=as_numbers(mean, "--mean"),
            std=as_numbers(std, "--std"), pretrained=not untrained,
            weights=weights and str(weights.absolute()), output=output, allow_pickle=allow_pickle,
            precision=precision, device=device, seed=seed, batch=batch, workers=workers,
            **_loss(recipe),
        )  # fmt: skip
    except KeyboardInterrupt:
        console.print("Stopped. What was finished is kept: the same command goes on from there.")
        raise Exit(130) from None
    for model, reason in done.failures:
        console.print(f"Not examined: {model}: {reason}", markup=False, style="red")
    sys.stdout.write(f"Report: {done.report}\n")
    if done.failures:
        raise Exit(2)


def _loss(recipe: str | None) -> dict[str, Any]:
    """What a recipe says about the loss: how images are augmented, how weights decay."""
    if recipe is None:
        return {}
    from retinoscope.recipes import parse_recipe

    asked = parse_recipe(recipe)
    return {"augmentation": asked.augmentation, "weight_decay": asked.weight_decay}
