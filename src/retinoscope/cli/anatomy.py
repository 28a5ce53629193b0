"""``retinoscope anatomy``: what models are made of, as a table, JSON and a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option

from retinoscope.cli.options import MODEL, with_fields
from retinoscope.core.specification import short_names, split_label
from retinoscope.run.specification import SubjectSpecification, check_asked

_MODEL = f"""{MODEL}. [cyan]LABEL=NAME[/] gives it a label. Several are shown one after the other,
and side by side in the picture."""


@with_fields(
    "model_settings", SubjectSpecification, "size", "output", "weights", "seed", "allow_pickle",
    panel="Options",
)  # fmt: skip
def anatomy(
    models: Annotated[list[str], Argument(help=_MODEL, metavar="MODEL", show_default=False)],
    save: Annotated[
        Path | None, Option(help="Write the anatomy as JSON; for several models F.MODEL.json each.")
    ] = None,
    picture: Annotated[
        Path | None, Option(help="Draw the anatomies into one file: .svg, .png or .pdf.")
    ] = None,
    *,
    model_settings: dict[str, Any],
) -> None:
    """Show what models are made of: their units, kinds, stages, resolutions and cost.

    The units are read from the computation graph, not from module names, so this works on any
    model, including your own. Nothing is downloaded: an anatomy needs no weights.

    [dim]retinoscope anatomy resnet50 swin_tiny_patch4_window7_224 --picture anatomy.svg[/]
    """
    check_asked(models, **model_settings)
    from retinoscope.cli.anatomy_table import anatomy_table, saved_as
    from retinoscope.core.files import write_atomically
    from retinoscope.models.anatomy import anatomy_of
    from retinoscope.run.progress import progress_bar

    if picture:
        from retinoscope.plots.anatomy import picture_format

        picture_format(picture)  # a wrong ending is said before the work, not behind it
    console = Console()
    found = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(models))
        named = [split_label(model) for model in models]
        shorts = short_names([name for _, name in named])
        for (label, name), short in zip(named, shorts, strict=True):
            called = label or short
            progress.update(task, description=f"taking {called} apart")
            made = anatomy_of(name, say=_say, **model_settings)
            progress.update(task, advance=1)
            if save:
                write_atomically(saved_as(save, called, len(models)), made.to_json())
            found.append(replace(made, model=called))
            console.print(anatomy_table(found[-1]), "")
    if picture:
        from retinoscope.plots.anatomy import draw

        draw(found, picture)
        console.print(f"Picture written to {picture}", highlight=False)


def _say(text: str) -> None:
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
