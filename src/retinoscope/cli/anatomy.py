"""``retinoscope anatomy``: what models are made of, as a table, JSON and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from retinoscope.cli.options import AllowPickle, Size

_MODEL = """A timm name ([cyan]resnet50[/], [cyan]vit_tiny_patch16_224:img_size=32,patch_size=4[/]),
[cyan]torchvision:NAME[/], [cyan]hf:FOLDER_OR_NAME[/] or [cyan]path/file.py:function[/]. Several are
shown one after the other, and side by side in the picture."""


def anatomy(
    models: Annotated[list[str], Argument(help=_MODEL, metavar="MODEL", show_default=False)],
    size: Size = None,
    save: Annotated[
        Path | None, Option(help="Write the anatomy as JSON; for several models F.MODEL.json each.")
    ] = None,
    picture: Annotated[
        Path | None, Option(help="Draw the anatomies into one file: .svg, .png or .pdf.")
    ] = None,
    output: Annotated[
        str | None, Option(help="Entry of a dict or tuple output that holds the logits.")
    ] = None,
    weights: Annotated[
        Path | None, Option(help="A .safetensors or .pth file; an anatomy needs none.")
    ] = None,
    seed: Annotated[int, Option(help="Of the random weights used otherwise.")] = 0,
    allow_pickle: AllowPickle = False,
) -> None:
    """Show what models are made of: their units, kinds, stages, resolutions and cost.

    The units are read from the computation graph, never from names, so this works on models that
    nobody here has seen. Nothing is downloaded: an anatomy needs no weights.

    [dim]retinoscope anatomy resnet50 swin_tiny_patch4_window7_224 --picture anatomy.svg[/]
    """
    from retinoscope.cli.anatomy_table import anatomy_table, parse_size, saved_as
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
        for name in models:
            progress.update(task, description=f"taking {name} apart")
            made = anatomy_of(
                name,
                parse_size(size),
                output=output,
                weights=weights,
                seed=seed,
                allow_pickle=allow_pickle,
            )
            progress.update(task, advance=1)
            console.print(anatomy_table(made), "")
            if save:
                write_atomically(saved_as(save, name, len(models)), made.to_json())
            found.append(made)
    if picture:
        from retinoscope.plots.anatomy import draw

        draw(found, picture)
        console.print(f"Picture written to {picture}", highlight=False)
