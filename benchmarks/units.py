"""What units do in the trained micro networks, and what that says of the papers' claims.

    python benchmarks/units.py        measure what is missing, write results/units_cifar10.md

The networks come from ``make trained``; seeds that are not trained yet are left out. The same
command resumes an interrupted run: measurements are stored next to the trainings.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from retinoscope import __version__
from retinoscope.core.errors import NotApplicable
from retinoscope.core.files import write_atomically
from retinoscope.core.result import Result
from retinoscope.core.subject import Subject
from retinoscope.probes.attention import Attention
from retinoscope.probes.attention_spectrum import AttentionSpectrum
from retinoscope.probes.consistency import Consistency
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.lesion import Lesion
from retinoscope.probes.oversmoothing import Oversmoothing
from retinoscope.probes.similarity import Similarity
from retinoscope.probes.variance import Variance
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from trained import SEEDS, runs
from unit_claims import CLAIMS, Found

PAGE = Path(__file__).parent.parent / "results" / "units_cifar10.md"
IMAGES = 512
PROBES = (
    Fourier(pictures=0), Variance(), Similarity(), Attention(maps=0),
    Oversmoothing(untrained=True), Lesion(), AttentionSpectrum(images=16),
)  # fmt: skip
NETWORKS = (
    "micro_resnet", "micro_vit", "micro_swin", "micro_pit", "micro_vit_cb", "micro_vit_plus",
    "micro_vit_minus",
)  # fmt: skip
COLUMNS = (
    ("accuracy (%)", "lesion", lambda r: 100 * r.accuracy),
    ("CKA contrast", "similarity", lambda r: r.contrast),
    ("worst lesion (points)", "lesion", lambda r: 100 * r.accuracy_change.min()),
    ("normalised entropy", "attention", lambda r: np.nanmean(r.normalised_entropy)),
    ("attention distance (px)", "attention", lambda r: np.nanmean(r.distance)),
    ("HFC/LFC first → last", "oversmoothing", lambda r: r.ratio[[0, -1]]),
    ("smoothing dominates (%)", "attention_spectrum", lambda r: 100 * r.tally[0]),
)


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", default=os.environ.get("RETINOSCOPE_DATA", ""))
    root = parser.parse_args().root
    if not root:
        raise SystemExit("RETINOSCOPE_DATA is not set: it names the folder with CIFAR-10.")
    torch.set_num_threads(1)
    run = Run(runs() / "units")
    found: dict[str, list[dict[str, Result]]] = {}
    for seed in SEEDS:
        for name in NETWORKS:
            weights = runs() / "cifar10" / f"{name}-seed{seed}" / "snapshots" / "end.safetensors"
            if weights.is_file():
                subject = load_subject(str(weights), "cifar10", root=root, images=IMAGES)
                found.setdefault(name, []).append(measured(run, subject, PROBES))
                print(f"{name} seed {seed} measured", flush=True)
        random = load_subject(
            "micro_vit", "cifar10", root=root, images=IMAGES, pretrained=False, seed=seed
        )
        spectra = measured(run, random, [AttentionSpectrum(images=16)])
        found.setdefault("micro_vit, random", []).append(spectra)
    for name, depth in (("one convolution", 1), ("five convolutions", 5)):
        torch.manual_seed(0)
        subject = load_subject(
            convolutions(depth), "cifar10", root=root, images=None, size=(32, 32), name=name
        )
        found[name] = [measured(run, subject, [Consistency(images="noise")])]
    run.files.close()
    write_atomically(PAGE, "\n".join(page(found)) + "\n")
    print(f"{PAGE.relative_to(PAGE.parent.parent)} written")


def convolutions(depth: int) -> nn.Module:
    """Convolutions of 3 × 3 with random weights, with ReLUs in between, and a classifier.

    The last one has one channel: correlations of several with different signs would cancel.
    """
    widths = [3, *[16] * (depth - 1), 1]
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.ReLU()]
    # Without the last ReLU: the points of a map that is a sum of independent pixels.
    return nn.Sequential(
        *parts[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 10)
    ).eval()


def measured(run: Run, subject: Subject, probes: Sequence[Any]) -> dict[str, Result]:
    """The result of each probe that applies."""
    found = {}
    for probe in probes:
        try:
            found[probe.result.probe] = run.measure(probe, subject)
        except NotApplicable as reason:
            print(f"{subject.name}: {probe.result.probe} {reason}", flush=True)
    return found


def page(found: Found) -> list[str]:
    """The table of all networks, and each claim with what was measured."""
    lines = [
        "# What units do in micro networks trained on CIFAR-10",
        "",
        f"Networks of `make trained` (recipe `micro` on 10,000 images), measured on {IMAGES} test "
        "images; eigenvalues on 16 of them, covariances of white noise on as many noise images as "
        "there are test images. Mean ± standard deviation over seeds. These networks are small "
        "and trained briefly; a claim about large networks may fail here without being wrong.",
        "",
        f"| network | seeds | {' | '.join(name for name, *_ in COLUMNS)} |",
        "|---|---" + "|---" * len(COLUMNS) + "|",
    ]
    for name in NETWORKS:
        if name in found:
            cells = [_cell(found[name], probe, of) for _, probe, of in COLUMNS]
            lines.append(f"| {name} | {len(found[name])} | {' | '.join(cells)} |")
    lines += ["", "## Claims", ""]
    for claim in CLAIMS:
        missing = [name for name in claim.networks if name not in found]
        lines.append(f"- **{claim.words[0].upper()}{claim.words[1:]}** ({claim.source}).")
        if missing:
            lines.append(f"  Not measured yet: {', '.join(missing)} is not trained.")
        else:
            agrees, words = claim.check(found)
            verdict = {True: "Agrees", False: "Disagrees", None: "Partly"}[agrees]
            lines.append(f"  {verdict}: {words}.")
    lines += [
        "",
        f"Made by `python benchmarks/units.py` with retinoscope {__version__}, torch "
        f"{torch.__version__}, on cpu, 1 thread.",
    ]
    return lines


def _cell(seeds: Sequence[Mapping[str, Result]], probe: str, of: Any) -> str:
    """The mean and the standard deviation over seeds; a dash if it does not apply."""
    values = [of(seed[probe]) for seed in seeds if probe in seed]
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    rows = np.array(values, dtype=float).reshape(len(values), -1)
    spread = rows.std(0, ddof=1) if len(rows) > 1 else np.full(rows.shape[1], np.nan)
    return " → ".join(
        f"{mean:.3g}" + (f" ± {deviation:.2g}" if np.isfinite(deviation) else "")
        for mean, deviation in zip(rows.mean(0), spread, strict=True)
    )


if __name__ == "__main__":
    main()
