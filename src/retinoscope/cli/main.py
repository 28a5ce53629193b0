"""The command ``retinoscope``: its subcommands, and errors shown as one clear paragraph."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer
from rich.console import Console

from retinoscope import __version__
from retinoscope.core.errors import RetinoscopeError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# One file per command; each defines a function of its own name, and COMMAND where it parses itself.
COMMANDS = ("examine", "anatomy", "advise", "build", "search", "train", "report", "list")


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"retinoscope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Show how vision backbones work, and build better ones: from timm or your own code."""


for _name in COMMANDS:
    _module = import_module(f"retinoscope.cli.{_name}")
    app.command(cls=getattr(_module, "COMMAND", None))(getattr(_module, _name))


def main() -> None:
    """Run the command line; a user's mistake ends with exit code 2 and without a traceback."""
    try:
        app()
    except RetinoscopeError as error:
        Console(stderr=True).print("[bold red]Error[/]", end=" ")
        Console(stderr=True, soft_wrap=True).print(str(error), markup=False, highlight=False)
        sys.exit(2)
