"""Building a localised network, against the same by another checkout, side by side in one run.

    python benchmarks/building.py --against PATH

One process of each has loaded all that it needs; they build in turns. What they build is checked
to agree: the anatomy before and after, and the logits. Without PATH, the same code is timed
against itself, which tells how much the machine wavers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from pairs import Ratio, machine, verdict

HERE = Path(__file__).parents[1]
BAR = 0.4
_WORKER = """
import hashlib, json, sys, time
import torch
torch.set_num_threads(1)
from retinoscope.models.build import build_model
model, surgeries = json.loads(sys.argv[1])
for _ in sys.stdin:
    start = time.perf_counter()
    made = build_model(model, surgeries, pretrained=False)
    before, after = made.before, made.after
    seconds = time.perf_counter() - start
    images = torch.ones(1, *before.image)
    with torch.no_grad():
        answer = made.model.eval()(images).numpy().tobytes()
    told = (before.to_json() + after.to_json()).encode() + answer
    print(json.dumps([seconds, hashlib.sha256(told).hexdigest()]), flush=True)
"""


class Builder:
    """A process that builds by the code of one checkout whenever it is told to."""

    def __init__(self, checkout: Path, model: str, surgeries: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, json.dumps([model, surgeries])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
        )

    def build(self) -> tuple[float, str]:
        """How long it took, and a hash of what came out."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise SystemExit("A process that builds has died; its own error stands above.")
        seconds, digest = json.loads(line)
        return seconds, digest


def main() -> None:
    """Print the ratio and whether it meets the bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--against", type=Path, default=HERE)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--apply", nargs="+", default=["localise:kernel=5"])
    parser.add_argument("--pairs", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    ours, theirs = (
        Builder(checkout.resolve(), asked.model, asked.apply) for checkout in (HERE, asked.against)
    )
    if ours.build()[1] != theirs.build()[1]:  # which also warms both up
        raise SystemExit("The two do not build the same: nothing would be measured.")
    turns = [(ours.build()[0], theirs.build()[0]) for _ in range(asked.pairs)]
    found = Ratio.of(*zip(*turns, strict=True))
    met = verdict(found.median <= BAR)
    what = f"{asked.model} with {' '.join(asked.apply)}"
    print(f"{what}: build / build at {asked.against} {found}; bar {BAR} {met}")


if __name__ == "__main__":
    main()
