"""``retinoscope report``: a page from run folders alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def report(
    runs: Annotated[
        list[Path], Argument(help="Folders written by examine or train.", metavar="RUN...")
    ],
    out: Annotated[Path, Option("-o", "--out", help="The file to write.")] = Path("report.html"),
    title: Annotated[str, Option(help="Title of the page. Default: the names of the models.")] = "",
) -> None:
    """Make one page from several run folders. Needs no model and no network.

    [dim]retinoscope report runs/monday runs/tuesday -o comparison.html[/]
    """
    from retinoscope.report.build import build_report
    from retinoscope.report.collect import collect

    written = build_report(runs, out, title)
    for folder, reason in collect(runs).left_out:
        sys.stderr.write(f"Left out: {folder}: {reason}\n")
    sys.stdout.write(f"Report: {written}\n")
