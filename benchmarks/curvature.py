"""Sharpness and non-convexity of the trained micro networks, after warm-up and at the end.

    python benchmarks/curvature.py            measure what is missing, write tables to results/
    python benchmarks/curvature.py --only cues

Measures the Hessian's five eigenvalues of largest magnitude on each of 32 mini-batches of 16
training images, augmented and with weight decay as in training (Park & Kim, 2022, arXiv:2202.06709,
algorithm 1). The networks on CIFAR-10 come from ``make trained``, those on cues from the package.
The same command resumes an interrupted run: measurements are stored next to the trainings.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from retinoscope import __version__
from retinoscope.core.files import write_atomically
from retinoscope.probes.hessian import Hessian, HessianResult
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from trained import ZOO, runs

RESULTS = Path(__file__).parent.parent / "results"
PROBE = Hessian(batches=32)
NETWORKS = ("micro_resnet", "micro_alternet", "micro_vit", "micro_vit_gap")
STAGES = ("warmup", "end")
SEEDS = 3
CLAIMS = (
    ("micro_vit", "micro_resnet", "nep", "ViTs are further from convex than ResNets", 1),
    ("micro_vit", "micro_resnet", "ape", "ViTs are flatter than ResNets", -1),
    ("micro_alternet", "micro_resnet", "ape",
     "attention at the ends of stages makes the loss flatter", -1),
    ("micro_vit_gap", "micro_vit", "nep",
     "mean pooling instead of the class token makes the loss more convex", -1),
)  # fmt: skip
"""Claims of Park & Kim (2022): two networks, the quantity to subtract, the claim, its sign."""


def main() -> None:
    """Measure what is missing and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=("cifar10", "cues"), default=None)
    parser.add_argument("--root", default=os.environ.get("RETINOSCOPE_DATA", ""))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only != "cues":
        if arguments.root:
            write("cifar10", NETWORKS, range(SEEDS), arguments.root)
        else:
            print("RETINOSCOPE_DATA is not set: CIFAR-10 is left out.")
    if arguments.only != "cifar10":
        write("cues", tuple(ZOO), range(1), None)


def weights(group: str, model: str, seed: int, stage: str) -> str:
    """The name of a network at one stage of its training."""
    if group == "cues":
        return f"{model}.cues_warmup" if stage == "warmup" else f"{model}.cues"
    return str(runs() / group / f"{model}-seed{seed}" / "snapshots" / f"{stage}.safetensors")


def write(group: str, models: Sequence[str], seeds: Sequence[int], root: str | None) -> None:
    """Measure a group of networks and write its table."""
    run = Run(runs() / "curvature" / group)
    found: dict[tuple[str, str], list[HessianResult]] = {}
    for seed in seeds:
        for model in models:
            for stage in STAGES:
                name = weights(group, model, seed, stage)
                result = run.measure(PROBE, load_subject(name, group, root=root))
                assert isinstance(result, HessianResult)
                found.setdefault((model, stage), []).append(result)
                print(
                    f"{group} {model} seed {seed} {stage}: NEP {result.nep:.3f}, APE "
                    f"{result.ape or 0:.1f}, {result.products} products, {result.unfinished} "
                    "unfinished",
                    flush=True,
                )
    run.files.close()
    path = RESULTS / f"hessian_{group}.md"
    write_atomically(path, "\n".join(page(group, models, found)) + "\n")
    print(f"{path.relative_to(RESULTS.parent)} written")


def page(
    group: str, models: Sequence[str], found: dict[tuple[str, str], list[HessianResult]]
) -> list[str]:
    """The table, and a comparison with the paper's claims."""
    first = next(iter(found.values()))
    several = len(first) > 1
    spread = (
        f"Mean ± standard deviation over {len(first)} seeds"
        if several
        else "One seed; in brackets, the 95 % bootstrap interval over mini-batches"
    )
    lines = [
        f"# Curvature of the loss of micro networks on {group}",
        "",
        f"Algorithm 1 of Park & Kim (2022, arXiv:2202.06709): the {PROBE.k} eigenvalues of largest "
        f"magnitude of the Hessian of NLL plus weight decay ({first[0].weight_decay:g}), on each "
        f"of {PROBE.batches} mini-batches of {PROBE.batch} training images, cropped and flipped as "
        "in training. NEP: fraction of negative eigenvalues. APE: mean of the positive ones. The "
        "trace is that of the NLL alone. "
        f"{spread}. The residual of every eigenvalue{_unfinished(found)} bounds its relative "
        f"error by {PROBE.tolerance:g}.",
        "",
        "| network | after | NEP (%) | APE | trace | train NLL | products per mini-batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in models:
        for stage in STAGES:
            results = found[model, stage]
            after = "warm-up" if stage == "warmup" else "training"
            products = statistics.mean(r.products for r in results) / PROBE.batches
            lines.append(
                f"| {model} | {after} | {_cell(results, 'nep', 100)} | {_cell(results, 'ape', 1)} "
                f"| {_cell(results, 'trace', 1)} | {_cell(results, 'nll', 1, 3)} "
                f"| {products:.1f} |"
            )
    errors = (
        "over seeds"
        if several
        else "over mini-batches, which do not include the variation between trainings"
    )
    lines += [
        "",
        "Compared with the findings of Park & Kim, at full scale and after warm-up (± standard "
        f"errors {errors}; undecided below two standard errors):",
        "",
    ]
    for more, less, what, words, sign in CLAIMS:
        for stage in STAGES:
            lines.append(_claim(found[more, stage], found[less, stage], what, words, sign, stage))
    lines += [
        "",
        f"Made by `python benchmarks/curvature.py` with retinoscope {__version__}, torch "
        f"{torch.__version__}, on cpu, 1 thread.",
    ]
    return lines


def _unfinished(found: dict[tuple[str, str], list[HessianResult]]) -> str:
    count = sum(result.unfinished for results in found.values() for result in results)
    return f" except {count}" if count else ""


def _cell(results: Sequence[HessianResult], what: str, times: float, digits: int = 1) -> str:
    values = [times * (getattr(result, what) or 0.0) for result in results]
    if len(values) > 1:
        return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
    interval = getattr(results[0], f"{what}_interval", None)
    if interval is None:
        return f"{values[0]:.{digits}f}"
    low, high = (times * end for end in interval)
    return f"{values[0]:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _claim(
    more: Sequence[HessianResult], less: Sequence[HessianResult], what: str, words: str,
    sign: int, stage: str,
) -> str:  # fmt: skip
    """A claim, the measured difference, and whether it supports the claim."""
    pairs = zip(more, less, strict=True)
    differences = [(getattr(a, what) or 0.0) - (getattr(b, what) or 0.0) for a, b in pairs]
    mean, seeds = statistics.mean(differences), len(differences)
    if seeds > 1:
        error = statistics.stdev(differences) / seeds**0.5
    else:
        error = math.hypot(*(_error(result, what) for result in (more[0], less[0])))
    verdict = "holds here" if mean * sign > 0 else "does not hold here"
    when = "after warm-up" if stage == "warmup" else "at the end"
    return (
        f"- {words}, {when}: {what.upper()} differs by {mean:+.3g} ± {error:.2g}: "
        f"{verdict if abs(mean) > 2 * error else 'undecided'}"
    )


def _error(result: HessianResult, what: str) -> float:
    """The standard error over mini-batches, from the 95 % bootstrap interval."""
    low, high = getattr(result, f"{what}_interval") or (0.0, 0.0)
    return (high - low) / (2 * 1.96)


if __name__ == "__main__":
    main()
