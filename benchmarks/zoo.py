"""Dissect and replay the smallest model of every timm module, and write docs/zoo.md.

Weights and statistics are drawn at order one, so that every branch has an effect. Each row is saved
to a file as soon as it is finished; an interrupted run resumes, unless the code, torch or timm have
changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

import timm
import torch
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import retinoscope
from retinoscope.anatomy.replay import replay
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import RetinoscopeError
from retinoscope.core.files import write_atomically
from retinoscope.models.order_one import draw_at_order_one

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "runs" / "zoo"
BAR = 1e-5


@dataclass
class Row:
    """The results for the smallest model of one module."""

    module: str
    model: str
    image: list[int]
    parameters: int
    kinds: dict[str, int] = field(default_factory=dict)
    inner: int = 0
    stages: int = 0
    seconds: float = 0.0
    error: float | None = None
    """Largest deviation of the replay's logits from the model's, in units of the largest logit."""
    failure: str = ""
    merged: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    without_grid: list[str] = field(default_factory=list)


def main() -> None:
    """Compute all rows, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--modules", nargs="*", default=timm.list_modules())
    arguments = parser.parse_args()
    rows = collect(sorted(arguments.modules), arguments.jobs)
    if len(rows) == len(timm.list_modules()):
        write_atomically(ROOT / "docs" / "zoo.md", page(rows))
    replayed = sum(row.error is not None and row.error <= BAR for row in rows)
    print(f"{replayed} of {len(rows)} modules replay with max |Δ| ≤ {BAR:g} of the output's scale")
    for row in rows:
        if row.failure:
            print(f"{row.model}: {row.failure}")


def collect(modules: list[str], jobs: int) -> list[Row]:
    """One row per module, from its file if there is one."""
    rows: dict[str, Row] = {}
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress, get_context("spawn").Pool(jobs) as pool:
        task = progress.add_task("dissecting models", total=len(modules))
        for row in pool.imap_unordered(row_of, modules):
            rows[row.module] = row
            progress.update(task, advance=1, description=row.module)
    return [rows[module] for module in modules]


def row_of(module: str) -> Row:
    """The row of one module, read from its file if still valid, otherwise computed and saved."""
    path = KEPT / f"{module}.{state_of_the_code()}.json"
    if path.exists():
        return Row(**json.loads(path.read_text()))
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    name, parameters, image = smallest(module)
    row = Row(module, name, list(image), parameters)
    try:
        examine(row)
    except RetinoscopeError as error:
        row.failure = f"{type(error).__name__}: {error}"
    write_atomically(path, json.dumps(asdict(row), indent=1))
    return row


def state_of_the_code() -> str:
    """A hash that changes whenever a row could change."""
    digest = hashlib.sha256(f"{torch.__version__} {timm.__version__}".encode())
    for file in sorted([*Path(retinoscope.__file__).parent.rglob("*.py"), Path(__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def smallest(module: str) -> tuple[str, int, tuple[int, int, int]]:
    """The model of a module with the fewest parameters, built without allocating memory."""
    found = []
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            model = timm.create_model(name)
        count = sum(p.numel() for p in model.parameters())
        found.append((count, name, tuple(model.pretrained_cfg["input_size"])))
    count, name, image = min(found)
    return name, count, image


def examine(row: Row) -> None:
    """Dissect the model and replay it on three images."""
    torch.manual_seed(0)
    model = draw_at_order_one(timm.create_model(row.model)).eval()
    start = time.perf_counter()
    ours = replay(model, tuple(row.image[1:]), name=row.model)
    row.seconds = round(time.perf_counter() - start, 1)
    describe(row, ours.anatomy)
    x = torch.randn(3, *row.image, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(x)
        row.error = float((ours(x) - expected).abs().max() / expected.abs().max())


def describe(row: Row, anatomy: Anatomy) -> None:
    """Fill in the anatomy's part of the row."""
    row.kinds = dict(Counter(str(unit.kind) for unit in anatomy))
    row.inner = sum(1 for _ in anatomy.walk()) - len(anatomy)
    row.stages = len(anatomy.stages)
    row.merged = {unit.name: unit.note for unit in anatomy.walk() if unit.note}
    row.others = [unit.name for unit in anatomy if unit.kind == "other"]
    row.without_grid = [u.name for u in anatomy if u.grid is None and u.kind != "head"]


INTRODUCTION = """# The zoo

The smallest model of every timm module, divided into units and replayed. `make prove` writes this
page. Weights and batch-norm statistics are first drawn at order one, so that zero-initialised norms
and layer scales of 1e-6 cannot hide an error in a branch. *Replay* is the largest difference of
replayed and eager logits on three images, relative to the largest logit; 0 means bit for bit equal.
*Seconds* is the time to divide the model into units, with one thread on a two-core machine: a rough
guide, not a benchmark. Terms are explained in the [glossary](glossary.md).

"""

REASONS = """
## What is merged or `other`, and why

A unit ends only at a tensor that every path from image to logits passes through. Where a path
bypasses an operation, no unit can end there, and the operations between are merged into one unit:

- **Dense connections** (DenseNet, RDNet, VoVNet, HGNet): each layer reads all earlier layers, so a
  dense block is one unit.
- **Parallel resolutions and cells** (HRNet, NASNet, PNASNet, CoaT's parallel stage, CrossViT, TNT):
  several streams run in parallel. CrossViT's two streams do not meet before the logits.
- **One query shared by many blocks** (GC ViT): a path leads from the start of the stage to each
  block.
- **Parallel branches added in one sum**: they are removed together, and the unit's note says so.
- **Features of several stages read by the head** (EfficientViM): everything after the first of them
  is merged.

`other` is a unit that fits none of the named kinds: a recurrent network over rows and columns
(Sequencer's LSTM), a linear map without a non-linearity between two blocks (RDNet's transitions), a
fixed transform (CSATv2's cosine transform).

"""


def page(rows: list[Row]) -> str:
    """The whole page."""
    replayed = [row for row in rows if row.error is not None and row.error <= BAR]
    exact = sum(row.error == 0 for row in rows)
    head = (
        f"torch {torch.__version__}, timm {timm.__version__}: **{len(replayed)} of {len(rows)}** "
        f"replay with a deviation of at most {BAR:g}, {exact} of them bit for bit.\n\n"
        "| module | model | image | units | inner | stages | seconds | replay |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return INTRODUCTION + head + "".join(map(line, rows)) + failures(rows) + REASONS + merged(rows)


def line(row: Row) -> str:
    """One row of the table."""
    size = "×".join(map(str, row.image[1:]))
    units = ", ".join(f"{count} {kind}" for kind, count in row.kinds.items())
    error = "fails, see below" if row.error is None else f"{row.error:.1e}" if row.error else "0"
    cells = (
        row.module, f"`{row.model}`", size, units, row.inner or "", row.stages or "",
        row.seconds or "", error,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |\n"


def failures(rows: list[Row]) -> str:
    """The section about failures."""
    failed = [f"- `{row.model}`: {shortened(row.failure)}\n" for row in rows if row.failure]
    return "\n## Failures\n\n" + ("".join(failed) or "None.\n")


def shortened(failure: str) -> str:
    """The failure without the path of this machine's packages."""
    before, found, behind = failure.partition("site-packages/")
    return before[: before.rfind("(") + 1] + behind if found else failure


def merged(rows: list[Row]) -> str:
    """The list of units that are merged, of kind other, or without a grid."""
    lines = []
    for row in rows:
        notes = defaultdict(list)
        for unit, note in row.merged.items():
            notes[note].append(unit)
        parts = [f"{note} ({listed(units)})" for note, units in notes.items()]
        parts += [f"other: {listed(row.others)}"] * bool(row.others)
        parts += [f"no grid: {listed(row.without_grid)}"] * bool(row.without_grid)
        lines += [f"- `{row.model}`: {'; '.join(parts)}\n"] * bool(parts)
    return "".join(lines)


def listed(names: list[str], most: int = 4) -> str:
    """A few names, and how many more there are."""
    text = ", ".join(f"`{name}`" for name in names[:most])
    return text + f" and {len(names) - most} more" * (len(names) > most)


if __name__ == "__main__":
    main()
