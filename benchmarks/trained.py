"""Trains the networks that the results are about, and writes their tables.

    make trained                                           all of them
    python benchmarks/trained.py --only cues --package     the packaged zoo again

Each is a training folder below RETINOSCOPE_RUNS (default: ~/.cache/retinoscope/runs). Trainings
that are there are not repeated; after an interruption the same command continues. Each training
uses one thread; ``--jobs`` of them run at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from retinoscope.recipes import parse_recipe
from retinoscope.train.recipe import Recipe, changed

FULL, TENTH = "micro:fraction=1", "micro:fraction=0.1,epochs=120"
"""All 10,000 images, or a tenth of them with about as many optimiser steps."""
CIFAR10 = (
    "micro_resnet", "micro_alternet", "micro_vit", "micro_vit_gap", "micro_vit_cb",
    "micro_vit_plus", "micro_vit_minus", "micro_swin", "micro_pit", "micro_vit_conv3",
    "micro_vit_conv5", "micro_vit_convglobal", "micro_preact_resnet", "micro_resnet_smooth",
    "micro_resnet_mcdo", "micro_resnet_mcdo_smooth", "micro_resnet_mcdo_mlp",
)  # fmt: skip
FEW_IMAGES = ("micro_vit", "micro_vit_plus", "micro_vit_minus")
SEEDS = range(3)
ZOO = {
    "micro_resnet": "micro", "micro_vit": "micro", "micro_alternet": "micro",
    "micro_preact_resnet": "micro", "micro_vit_gap": "micro.slow", "micro_swin": "micro.slow",
    "micro_pit": "micro",
}  # fmt: skip
"""By which recipe each packaged network is trained."""


@dataclass(frozen=True)
class Entry:
    """One training of the list."""

    group: str
    recipe: str
    model: str
    data: str
    seed: int
    variant: str = ""
    """Distinguishes trainings of one model in a group."""

    @property
    def label(self) -> str:
        """The network's name in tables."""
        return self.model + self.variant

    @property
    def name(self) -> str:
        """The folder, relative to that of all runs."""
        return f"{self.group}/{self.label}-seed{self.seed}"

    @property
    def command(self) -> list[str]:
        """Arguments of ``retinoscope`` that determine the result."""
        return [
            "train", self.recipe, "--model", self.model, "--data", self.data,
            "--seed", str(self.seed),
        ]  # fmt: skip


def entries() -> list[Entry]:
    """All trainings, ordered so that each seed's networks are complete before the next seed's."""
    zoo = [Entry("cues", ZOO[model], model, "cues", 0) for model in ZOO]
    first, *others = [_cifar10(seed) for seed in SEEDS]
    return [*first, *zoo, *chain.from_iterable(others)]


def _cifar10(seed: int) -> list[Entry]:
    ensemble = Entry(
        "cifar10", f"{FULL},ensemble=4", "micro_resnet_mcdo", "cifar10", seed, "_ensemble4"
    )
    return [
        *[Entry("cifar10", FULL, model, "cifar10", seed) for model in CIFAR10],
        ensemble,
        *[Entry("cifar10_tenth", TENTH, model, "cifar10", seed) for model in FEW_IMAGES],
    ]


def runs() -> Path:
    """The folder of all runs."""
    return Path(os.environ.get("RETINOSCOPE_RUNS") or "~/.cache/retinoscope/runs").expanduser()


def main() -> None:
    """Train what is missing, then write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--only", default="", help="a group: cifar10, cifar10_tenth, cues, search")
    parser.add_argument("--tables", action="store_true", help="only write the tables")
    parser.add_argument("--package", action="store_true", help="copy the zoo into the package")
    parser.add_argument("--root", default=os.environ.get("RETINOSCOPE_DATA", ""))
    arguments = parser.parse_args()
    wanted = [e for e in entries() if arguments.only in ("", e.group)]
    if not arguments.root and any(e.data == "cifar10" for e in wanted):
        print("RETINOSCOPE_DATA is not set: trainings on CIFAR-10 are left out.")
        wanted = [e for e in wanted if e.data != "cifar10"]
    failed = [] if arguments.tables else train_all(wanted, arguments.jobs, arguments.root)
    from trained_tables import package_zoo, write_search, write_tables

    write_tables([e for e in wanted if finished(e)], runs(), arguments.root or None)
    if arguments.only in ("", "search") and not arguments.tables:
        searched = search(arguments.jobs)
        write_search(searched)
    if arguments.package:
        package_zoo([e for e in wanted if e.group == "cues"], runs())
    sys.exit(1 if failed else 0)


def train_all(wanted: list[Entry], jobs: int, root: str) -> list[Entry]:
    """Train what is missing, some at a time; those that failed."""
    waiting = [e for e in wanted if not finished(e)]
    print(f"{len(wanted) - len(waiting)} of {len(wanted)} trainings are there, in {runs()}")
    total, failed = len(waiting), []
    running: dict[Entry, subprocess.Popen[bytes]] = {}
    start = time.monotonic()
    while waiting or running:
        while waiting and len(running) < jobs:
            entry = waiting.pop(0)
            running[entry] = launch(entry, root)
        time.sleep(1)
        for entry, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[entry]
            done = total - len(waiting) - len(running)
            left = (time.monotonic() - start) / done * (total - done)
            how = "done" if process.returncode == 0 else f"FAILED, see {log_of(entry)}"
            print(f"{entry.name}: {how}; {done} of {total}, {left / 60:.0f} min left", flush=True)
            if process.returncode:
                failed.append(entry)
    return failed


def finished(entry: Entry) -> bool:
    """Whether its last weights are there, by the recipe as it is now."""
    folder = runs() / entry.name
    if not (folder / "snapshots" / "end.safetensors").is_file():
        return False
    plain = json.loads((folder / "training.json").read_text())["recipe"]
    given = {"model": entry.model, "data": entry.data, "seed": entry.seed}
    return Recipe.from_plain(plain) == changed(parse_recipe(entry.recipe), given)


def log_of(entry: Entry) -> Path:
    """What the command says."""
    return runs() / f"{entry.name}.log"


def launch(entry: Entry, root: str) -> subprocess.Popen[bytes]:
    """Start or resume one training."""
    command = [
        sys.executable, "-m", "retinoscope", *entry.command, "--out", str(runs() / entry.name),
        "--workers", "0", *(["--root", root] if root else []),
    ]  # fmt: skip
    log_of(entry).parent.mkdir(parents=True, exist_ok=True)
    with log_of(entry).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )


SEARCH = (
    "search", "micro_resnet", "--data", "cues", "--recipe", "micro:epochs=2,scored=0",
    "--seeds", "2",
)  # fmt: skip


def search(jobs: int) -> Path:
    """Find where attention pays in a micro ResNet on cues; the folder of the search."""
    out = runs() / "search" / "micro_resnet-cues"
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "retinoscope", *SEARCH, "--jobs", str(jobs), "--out", str(out)
    ]  # fmt: skip
    with out.with_suffix(".log").open("ab") as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    if done.returncode:
        raise SystemExit(f"The search failed, see {out.with_suffix('.log')}")
    return out


if __name__ == "__main__":
    main()
