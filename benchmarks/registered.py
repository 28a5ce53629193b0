"""Check every network that we register with timm, with weights drawn at order one.

- forward: finite logits for two images; Monte Carlo dropout stays active in eval mode
- backward: in training mode, every parameter gets a finite gradient
- compile: torch.compile in one graph gives the eager logits, up to rounding
- replay: the model run unit by unit gives the eager logits, bit for bit
- bf16: the logits in bfloat16 are close to those in float32
- safetensors: weights saved and loaded into a new network give the same logits, bit for bit
- features: features_only gives maps with the channels and reductions that it declares

Prints a line per name, a table, and all failures; exits with 1 if there are any. Each row is saved
to a file as soon as it is finished; an interrupted run resumes, unless the code or a library has
changed since.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import safetensors
import timm
import torch
import torch._inductor.config
from rich.console import Console
from rich.table import Table

import proofs
import retinoscope
from proofs import CHECKS
from retinoscope.models import own_models

CACHE = Path(tempfile.gettempdir()) / "retinoscope-registered"
ROOMS = ("models", "layers", "anatomy", "core")
SMALL = 1_000_000
"""Parameters up to which inductor compiles in reasonable time; each family has such a network."""
LARGE = 100_000_000
"""Parameters above which networks are checked one at a time, to stay within 8 GB."""


@dataclass
class Row:
    """The results for one name."""

    name: str
    parameters: int = 0
    image: list[int] = field(default_factory=list)
    backend: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Processor time, including that of the compiler."""


def main() -> None:
    """Compute all rows and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--names", nargs="*", default=["*"], help="patterns, such as 'micro_*'")
    parser.add_argument(
        "--backend",
        default="auto",
        help=f"for torch.compile; auto: inductor up to {SMALL:,} parameters, then aot_eager",
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for finished rows")
    arguments = parser.parse_args()
    names = [n for n in own_models() if any(fnmatch(n, pattern) for pattern in arguments.names)]
    if not names:
        parser.error(f"No name matches {' or '.join(arguments.names)}. See: retinoscope list")
    rows = collect(names, arguments.jobs, arguments.backend, arguments.cache)
    Console(width=160).print(table(rows))
    for row in rows:
        for note in row.notes:
            print(f"{row.name}: {note}")
    failures = [f"{r.name}, {check}: {why}" for r in rows for check, why in r.failures.items()]
    print(f"{sum(not row.failures for row in rows)} of {len(rows)} names pass every check")
    for text in failures:
        print(text)
    sys.exit(1 if failures else 0)


def collect(names: list[str], jobs: int, backend: str, cache: Path) -> list[Row]:
    """One row per name, from the file of finished rows if possible; large ones one at a time."""
    path = cache / f"{backend}.{state_of_the_code()}.jsonl"
    rows = kept(path)
    missing = [name for name in names if name not in rows]
    large = [name for name in missing if parameters(name) > LARGE]
    print(f"{len(missing)} of {len(names)} names to check; rows are saved in {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for some, workers in (([n for n in missing if n not in large], jobs), (large, 1)):
            for row in proved(some, workers, backend):
                rows[row.name] = row
                # On a line of its own, even if the one before was cut off.
                print(f"\n{json.dumps(asdict(row))}", file=file, flush=True)
                print(f"{sum(n in rows for n in names)}/{len(names)} {line(row)}", flush=True)
    return [rows[name] for name in names]


def proved(names: list[str], jobs: int, backend: str) -> Iterator[Row]:
    """Yield rows as they are finished."""
    if not names:
        return
    with get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool:
        yield from pool.imap_unordered(partial(row_of, backend=backend), names)
        pool.close()
        pool.join()


def kept(path: Path) -> dict[str, Row]:
    """The rows of a file by name, without incomplete lines."""
    rows = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            row = Row(**json.loads(text))
            rows[row.name] = row
    return rows


def state_of_the_code() -> str:
    """A hash that changes whenever a row could change."""
    versions = (torch.__version__, timm.__version__, safetensors.__version__)
    digest = hashlib.sha256(" ".join(versions).encode())
    package = Path(retinoscope.__file__).parent
    files = [file for room in ROOMS for file in (package / room).rglob("*.py")]
    for file in sorted([*files, Path(__file__), Path(proofs.__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def parameters(name: str) -> int:
    """The number of parameters; 0 if the network cannot be built, which its row will report."""
    with suppress(Exception):
        return sum(parameter.numel() for parameter in proofs.weightless(name).parameters())
    return 0


def row_of(name: str, backend: str) -> Row:
    """The row of one name; any exception is recorded as a failure."""
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    start = processor_time()
    row = Row(name, parameters(name), backend=backend)
    if backend == "auto":
        row.backend = "inductor" if row.parameters <= SMALL else "aot_eager"
    try:
        case = proofs.prepare(name, row.backend)
        row.image, row.notes = list(case.images.shape[1:]), case.notes
    except Exception as error:
        row.failures["build"] = failure(error)
        return row
    for check, prove in CHECKS.items():
        try:
            row.cells[check] = prove(case)
        except Exception as error:
            row.cells[check], row.failures[check] = "FAIL", failure(error)
        gc.collect()
    row.seconds = round(processor_time() - start, 1)
    return row


def processor_time() -> float:
    """Seconds of this process and of its finished children."""
    return sum(os.times()[:4])


def failure(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def line(row: Row) -> str:
    """A row in one line."""
    cells = [f"{check} {cell}" for check, cell in row.cells.items()]
    return f"{row.name}, {row.seconds:.0f} s: {', '.join(cells or ['cannot be built'])}"


def table(rows: list[Row]) -> Table:
    """All rows as a table."""
    made = Table("name", "parameters", "image", *CHECKS, "backend")
    for row in rows:
        image = "×".join(map(str, row.image[1:]))
        cells = [row.cells.get(check, "–") for check in CHECKS]
        made.add_row(row.name, f"{row.parameters:,}", image, *cells, row.backend)
    return made


if __name__ == "__main__":
    main()
