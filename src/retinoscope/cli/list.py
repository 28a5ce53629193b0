"""``retinoscope list``: what names can be given."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from retinoscope.cli.settings import settings_table
from retinoscope.core.errors import WrongInput
from retinoscope.core.settings import described
from retinoscope.probes import get_probe, list_probes
from retinoscope.surgery import get_surgery, list_surgeries


def list(  # the command's name
    what: Annotated[
        str,
        Argument(
            help="models, probes, surgeries, recipes or data",
            metavar="models|probes|surgeries|recipes|data",
        ),
    ],
    filter: Annotated[
        str, Option("--filter", help="Only models whose name contains this, or fits it: vit_*_32.")
    ] = "",
) -> None:
    """List the models, probes, surgeries, recipes or data that can be named.

    [dim]retinoscope list models --filter 'swin*224'[/]
    """
    console = Console()
    if what == "probes":
        _probes(console)
    elif what == "data":
        from retinoscope.data.load import NAMES

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, text in NAMES.items():
            table.add_row(f"[bold]{name}[/]", text)
        console.print(table)
    elif what == "surgeries":
        _surgeries(console)
    elif what == "recipes":
        _recipes(console)
    elif what == "models":
        _models(console, filter)
    else:
        raise WrongInput(
            f"There is no list of {what!r}. There are: models, probes, surgeries, recipes, data."
        )


def _probes(console: Console) -> None:
    for name in list_probes():
        console.print(f"[bold]{name}[/]  {get_probe(name).question}")
        for flag, default, text in settings_table(name):
            console.print(f"    {flag} [dim](default: {default})[/]  {text}", highlight=False)


def _surgeries(console: Console) -> None:
    for name in list_surgeries():
        surgery = get_surgery(name)
        console.print(f"[bold]{name}[/]  {(surgery.__doc__ or '').splitlines()[0]}")
        for key, default, text in described(surgery):
            console.print(f"    {key} [dim](default: {default})[/]  {text}", highlight=False)
    console.print("Written as name:key=value,key=value", style="dim", highlight=False)


def _recipes(console: Console) -> None:
    from importlib import import_module

    from retinoscope.data.augment import Augmentation
    from retinoscope.recipes import list_recipes
    from retinoscope.train.recipe import Recipe

    for name in list_recipes():
        entry, _, variant = name.partition(".")
        text = import_module(f"retinoscope.recipes.{entry}").__doc__ or ""
        forms = {"": text.splitlines()[0], "original": f"{entry} as the paper's code has it"}
        said = forms.get(variant, f"another form of {entry}")
        console.print(f"[bold]{name}[/]  {said}", highlight=False)
    console.print("Settings, written as name:key=value,key=value", style="dim", highlight=False)
    for key, default, text in [*described(Recipe), *described(Augmentation)]:
        if key != "augmentation":
            console.print(f"    {key} [dim](default: {default})[/]  {text}", highlight=False)


def _models(console: Console, pattern: str) -> None:
    import timm

    from retinoscope.models import own_models

    wanted = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
    published = {name.partition(".")[0] for name in timm.list_pretrained()}
    names, ours = timm.list_models(wanted), set(own_models())
    for name in names:
        mark = "  (ours)" if name in ours else ""
        mark = mark if mark or name in published else "  (no published weights)"
        console.print(f"{name}{mark}", highlight=False, markup=False)
    console.print(
        f"{len(names)} models of timm. Also: torchvision:NAME, hf:FOLDER_OR_NAME, "
        "path/file.py:function", style="dim", highlight=False, markup=False,
    )  # fmt: skip
