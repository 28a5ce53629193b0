"""Builds one HTML file from run folders, without network access and without the models."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from retinoscope import __version__
from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import is_full
from retinoscope.core.result import Result
from retinoscope.figures.colours import BANDS
from retinoscope.figures.compare import inked, side_by_side, together
from retinoscope.figures.describe import figures
from retinoscope.figures.figure import Chart, Colour, Figure, Images, Map
from retinoscope.report.cards import card
from retinoscope.report.collect import Collected, Examined, Measured, collect
from retinoscope.report.downloads import address, as_csv, as_json
from retinoscope.report.outcomes import set_aside, table_rows, unfinished, warnings
from retinoscope.report.svg import svg
from retinoscope.report.svg.surface import surface
from retinoscope.report.words import protocol_in_brief, protocol_lines


@dataclass(frozen=True)
class Panel:
    """One subject's chart in a row of charts."""

    subject: str
    brief: str
    """The protocol in one line; empty if all charts of the row share it."""
    figure: Figure
    svg: Markup
    surface: Markup
    """A map in three dimensions; empty for other charts."""
    csv: str
    svg_file: str
    stem: str
    colour: str
    """The colour of the model, as a web colour."""

    @property
    def choices(self) -> tuple[str, Sequence[str]] | None:
        """What can be chosen, and the choices, if the chart shows one of several at a time."""
        chart = self.figure.chart
        if not isinstance(chart, Images) or not chart.choices:
            return None
        return self.figure.header[0], chart.choices


@dataclass(frozen=True)
class Together:
    """The curves of all subjects in one chart."""

    svg: Markup
    svg_file: str
    stem: str


@dataclass(frozen=True)
class Row:
    """The same figure of all subjects, side by side."""

    title: str
    panels: Sequence[Panel]
    brief: str
    """The common protocol; empty if the protocols differ."""
    note: str
    """A note on comparing the charts; empty if their axes are the same."""
    without: Sequence[str]
    """Subjects without anything to draw here."""
    together: Together | None = None
    """The same in one chart, if it is readable."""


@dataclass(frozen=True)
class Section:
    """One probe under one protocol."""

    anchor: str
    probe: str
    question: str
    reading: str
    rows: Sequence[Row]
    sentences: Sequence[tuple[str, Sequence[str]]]
    protocols: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    downloads: Sequence[tuple[str, str, str]]
    """Subject, file name and URL of each result as JSON."""


def build_report(
    runs: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    title: str = "",
    empty: bool = False,
) -> Path:
    """Write the report of one or several run folders; returns its path.

    Args:
        runs: The folders.
        out: The file to write. Default: ``report.html`` in the first folder.
        title: The title of the page. Default: the names of the models.
        empty: Whether to write a page even if nothing has been measured yet.
    """
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    path = Path(out) if out is not None else folders[0] / "report.html"
    page = render(collect(folders, empty), title)
    try:
        write_atomically(path, page)
    except OSError as error:
        reason = (
            "the disk is full. Free some space and run the same command again."
            if is_full(error)
            else f"{error.strerror}. Choose another file."
        )
        raise RunFolderError(f"The report cannot be written to {str(path)!r}: {reason}") from error
    return path


def render(collected: Collected, title: str = "") -> str:
    """The complete page as HTML."""
    examined = told_apart(collected.examined)
    several = len(examined) > 1
    colours = {
        subject.name: Colour("categorical", index) if several else Colour()
        for index, subject in enumerate(examined)
    }
    script, style = _asset("page.js"), _asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("retinoscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = " · ".join([*(subject.name for subject in examined), *collected.waiting])
    return environment.get_template("page.html").render(
        title=title or names or "nothing yet",
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        style=Markup(style),
        version=__version__,
        subjects=[card(subject) | {"colour": colours[subject.name].web} for subject in examined],
        untrained=[s.name for s in examined if s.protocol.get("trained") is False],
        sections=_sections(examined, colours),
        table=[row for subject in examined for row in table_rows(subject)],
        aside=set_aside(examined),
        problems=[(s.name, text) for s in examined for text in s.problems],
        failures=collected.failures,
        left_out=collected.left_out,
        unfinished=unfinished(examined),
        waiting=collected.waiting,
        commands=collected.commands,
        warnings=warnings(examined),
        bands={kind.replace("_", " "): colour for kind, colour in BANDS.items()},
    )


def told_apart(examined: Sequence[Examined]) -> list[Examined]:
    """The names of the subjects; equal names get a suffix that distinguishes them."""
    count = Counter(subject.name for subject in examined)
    named, seen = [], Counter[str]()
    for subject in examined:
        name = subject.name
        if count[name] > 1:
            sides = "×".join(map(str, subject.anatomy.image[1:]))
            name = f"{name} ({subject.weights}, {sides})"
        seen[name] += 1
        name = name if seen[name] == 1 else f"{name} #{seen[name]}"
        named.append(replace(subject, name=name))
    return named


def _asset(name: str) -> str:
    return (files("retinoscope.report") / "templates" / name).read_text()


def _sections(examined: Sequence[Examined], colours: Mapping[str, Colour]) -> list[Section]:
    """Results grouped by comparability: the same probe under the same protocol."""
    groups: dict[tuple[str, str], list[tuple[Examined, Measured]]] = {}
    for subject in examined:
        for measured in subject.measured:
            result = measured.result
            compared = ("data", "split", "augmentation", "view", "passes", "settings")
            shared = json.dumps([result.protocol.get(k) for k in compared], sort_keys=True)
            groups.setdefault((result.probe, shared), []).append((subject, measured))
    ordered = sorted(groups.items(), key=lambda item: item[0])
    return [
        _section(f"{probe}-{index}", probe, members, colours)
        for index, ((probe, _), members) in enumerate(ordered)
    ]


def _section(
    anchor: str,
    name: str,
    members: Sequence[tuple[Examined, Measured]],
    colours: Mapping[str, Colour],
) -> Section:
    results = [(subject.name, measured.result) for subject, measured in members]
    drawn = [(subject, result, figures(result)) for subject, result in results]
    there = {figure.field for _, _, made in drawn for figure in made}
    fields = [field for field in results[0][1].described() if field in there]
    first = results[0][1].protocol
    return Section(
        anchor, name, first.get("question", ""), first.get("reading", ""),
        [
            _row(
                [(s, r, figure) for s, r, made in drawn for figure in made if figure.field == f],
                [s for s, _, made in drawn if f not in {figure.field for figure in made}],
                colours,
            )
            for f in fields
        ],
        [(subject, result.findings()) for subject, result in results],
        [(subject, protocol_lines(result.protocol)) for subject, result in results],
        [
            (subject, f"{name}-{index}.json", address("application/json", as_json(result)))
            for index, (subject, result) in enumerate(results)
        ],
    )  # fmt: skip


def _row(
    members: Sequence[tuple[str, Result, Figure]],
    without: Sequence[str],
    colours: Mapping[str, Colour],
) -> Row:
    charts, note = side_by_side([figure.chart for _, _, figure in members])
    briefs = [protocol_in_brief(result, figure.chart.errors) for _, result, figure in members]
    same = len(set(briefs)) == 1
    panels = []
    for index, ((subject, result, figure), chart) in enumerate(zip(members, charts, strict=True)):
        drawn = svg(inked(chart, colours[subject]))
        panels.append(
            Panel(
                subject, "" if same else briefs[index], figure, drawn,
                surface(chart) if isinstance(chart, Map) else Markup(""),
                address("text/csv", as_csv(figure)),
                address("image/svg+xml", str(drawn)),
                f"{result.probe}-{figure.field}-{index}",
                colours[subject].web,
            )
        )  # fmt: skip
    joint = _together(members, charts, colours)
    return Row(members[0][2].title, panels, briefs[0] if same else "", note, without, joint)


def _together(
    members: Sequence[tuple[str, Result, Figure]],
    charts: Sequence[Chart],
    colours: Mapping[str, Colour],
) -> Together | None:
    names = [subject for subject, _, _ in members]
    chart = together(charts, names, [colours[name] for name in names])
    if chart is None:
        return None
    drawn = svg(chart)
    stem = f"{members[0][1].probe}-{members[0][2].field}-together"
    return Together(drawn, address("image/svg+xml", str(drawn)), stem)
