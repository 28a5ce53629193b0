"""Time to build a localised network, compared with another checkout in the same run.

    python benchmarks/building.py --against PATH

Each checkout has a process that has loaded everything it needs; they build in turns. The results
are checked to agree: the anatomy before and after, and the logits. Without PATH, the same code is
timed against itself, which shows how noisy the machine is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from checkouts import HERE, Worker
from pairs import Ratio, machine, verdict

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
        Worker(checkout.resolve(), _WORKER, [asked.model, asked.apply])
        for checkout in (HERE, asked.against)
    )
    if ours.work()[1] != theirs.work()[1]:  # which also warms both up
        raise SystemExit("The two build different networks, so there is nothing to compare.")
    turns = [(ours.work()[0], theirs.work()[0]) for _ in range(asked.pairs)]
    found = Ratio.of(*zip(*turns, strict=True))
    met = verdict(found.median <= BAR)
    what = f"{asked.model} with {' '.join(asked.apply)}"
    print(f"{what}: build / build at {asked.against} {found}; bar {BAR} {met}")


if __name__ == "__main__":
    main()
