"""``retinoscope list``: what names can be given, and what one of them means."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from retinoscope.core.errors import WrongInput
from retinoscope.core.settings import Described, described, example
from retinoscope.probes import get_probe, list_probes
from retinoscope.recipes import get_recipe, list_recipes
from retinoscope.surgery import get_surgery, list_surgeries
from retinoscope.workflows.presets import PRESETS


def list(  # the command's name
    what: Annotated[
        str,
        Argument(
            help="models, probes, presets, surgeries, recipes or data",
            metavar="models|probes|presets|surgeries|recipes|data",
        ),
    ],
    name: Annotated[
        str,
        Argument(
            help="One of them, with all its settings; a probe of your own: [cyan]./x.py:Class[/].",
            metavar="[NAME]",
            show_default=False,
        ),
    ] = "",
    filter: Annotated[
        str, Option("--filter", help="Only models whose name contains or matches this: vit_*_32.")
    ] = "",
) -> None:
    """List the models, probes, presets, surgeries, recipes or data that can be named.

    [dim]retinoscope list probes hessian[/]

    [dim]retinoscope list models --filter 'swin*224'[/]
    """
    console = Console()
    if what not in _LISTS:
        raise WrongInput(f"There is no list of {what!r}. There are: {', '.join(_LISTS)}.")
    if what == "models":
        _models(console, name or filter)
    elif not name:
        _LISTS[what](console)
    elif what in _ENTRIES:
        _ENTRIES[what](console, name)
    else:
        raise WrongInput(f"The {what} have no settings to show. List them: retinoscope list {what}")


def _probes(console: Console) -> None:
    _table(console, [(name, get_probe(name).question) for name in list_probes()])
    _hint(console, "Settings of one: retinoscope list probes NAME")


def _probe(console: Console, name: str) -> None:
    probe = get_probe(name)
    _say(console, f"[bold]{name}[/]  {probe.question}")
    if probe.reading:
        _say(console, f"\n{probe.reading}")
    _settings(console, described(probe))
    _example(console, ["retinoscope", "examine", "micro_resnet", "--probe", example(probe, name)])


def _presets(console: Console) -> None:
    rows = []
    for preset in PRESETS.values():
        images = "all images" if preset.images is None else f"{preset.images} images per split"
        rows.append((preset.name, f"{preset.about}. {images}: {', '.join(preset.probes)}"))
    _table(console, rows)
    _hint(console, "Use it with: retinoscope examine MODEL --preset standard")


def _surgeries(console: Console) -> None:
    _table(console, [(name, _summary(get_surgery(name).__doc__)) for name in list_surgeries()])
    _hint(console, "Settings of one: retinoscope list surgeries NAME")


def _surgery(console: Console, name: str) -> None:
    surgery = get_surgery(name)
    _say(console, f"[bold]{name}[/]  {_paragraphs(surgery.__doc__)}")
    _settings(console, described(surgery))
    model = getattr(surgery, "example_model", "micro_resnet")
    applied = ["--apply", example(surgery, name), "--out", f"{name}.safetensors"]
    _example(console, ["retinoscope", "build", model, *applied])


def _recipes(console: Console) -> None:
    rows = []
    for name in list_recipes():
        entry, _, variant = name.partition(".")
        text = _summary(import_module(f"retinoscope.recipes.{entry}").__doc__)
        forms = {"": text, "original": f"{entry} as the paper's code has it"}
        rows.append((name, forms.get(variant, f"another form of {entry}")))
    _table(console, rows)
    _hint(console, "Settings of one: retinoscope list recipes NAME")


def _recipe(console: Console, name: str) -> None:
    recipe = get_recipe(name)
    _say(console, f"[bold]{name}[/]  ", end="")
    text = import_module(f"retinoscope.recipes.{name.partition('.')[0]}").__doc__ or ""
    console.print(text.strip(), highlight=False, markup=False)
    rows = [
        row._replace(default=str(getattr(one, row.name)) or "not set")
        for one in (recipe, recipe.augmentation)
        for row in described(type(one))
        if row.name != "augmentation"
    ]
    _settings(console, rows, "this recipe")
    asked = ["retinoscope", "train", f"{name}:epochs=1,batch=64", "--model", "micro_resnet"]
    _example(console, [*asked, "--data", "cues"])


def _data(console: Console) -> None:
    from retinoscope.data.load import NAMES

    _table(console, [*NAMES.items()])


def _models(console: Console, pattern: str = "") -> None:
    import timm

    from retinoscope.models import own_models

    wanted = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
    published = {name.partition(".")[0] for name in timm.list_pretrained()}
    names, ours = timm.list_models(wanted), set(own_models())
    for name in names:
        mark = "  (ours)" if name in ours else ""
        mark = mark if mark or name in published else "  (no published weights)"
        console.print(f"{name}{mark}", highlight=False, markup=False)
    _hint(
        console,
        f"{len(names)} models of timm. Also: torchvision:NAME, hf:FOLDER_OR_NAME, "
        "path/file.py:function",
    )


_LISTS: dict[str, Callable[[Console], None]] = {
    "models": _models,
    "probes": _probes,
    "presets": _presets,
    "surgeries": _surgeries,
    "recipes": _recipes,
    "data": _data,
}
_ENTRIES: dict[str, Callable[[Console, str], None]] = {
    "probes": _probe,
    "surgeries": _surgery,
    "recipes": _recipe,
}


def _settings(console: Console, rows: Sequence[Described], default: str = "default") -> None:
    if not rows:
        _say(console, "\nIt has no settings.")
        return
    table = Table(
        "setting", "values", default, "meaning",
        box=None, padding=(0, 2, 0, 0), header_style="bold underline",
    )  # fmt: skip
    for row in rows:
        table.add_row(f"[bold]{row.name}[/]", row.values, row.default, row.text)
    console.print("", table)


def _table(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    for name, text in rows:
        table.add_row(f"[bold]{name}[/]", text)
    console.print(table)


def _example(console: Console, words: Sequence[str]) -> None:
    console.print("\nExample", style="bold underline", highlight=False)
    console.print(shlex.join(words), highlight=False, markup=False, soft_wrap=True)


def _hint(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False)


def _say(console: Console, text: str, end: str = "\n") -> None:
    console.print(text, highlight=False, end=end)


def _summary(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0].replace("``", "")


def _paragraphs(docstring: str | None) -> str:
    parts = (docstring or "").replace("``", "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts).strip()
