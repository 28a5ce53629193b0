"""What the trained networks came to, as tables in results/; and the zoo as part of the package."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retinoscope import __version__
from retinoscope.core.files import write_atomically
from retinoscope.data.load import load_data
from retinoscope.models.checkpoint import state_hash
from retinoscope.models.load import load_model
from retinoscope.numerics.cue_shares import CueShares, cue_shares
from retinoscope.plots.search import draw
from retinoscope.train.feed import plain_batches
from retinoscope.train.images import Fit, LabelledImages
from retinoscope.train.processes import Processes
from retinoscope.train.score import score
from retinoscope.train.search.search import Search
from retinoscope.train.student import Student
from retinoscope.zoo import SNAPSHOTS, folder_of

if TYPE_CHECKING:
    from trained import Entry

RESULTS = Path(__file__).parent.parent / "results"

DIFFERENCES = (
    ("micro_alternet", "micro_resnet", "attention at the end of stages (arXiv:2202.06709)"),
    ("micro_vit_gap", "micro_vit", "mean pooling for the class token (arXiv:2202.06709)"),
    ("micro_vit_conv3", "micro_vit_convglobal", "attention to 3 × 3 positions (arXiv:2202.06709)"),
    ("micro_vit_conv5", "micro_vit_convglobal", "attention to 5 × 5 positions (arXiv:2202.06709)"),
    ("micro_vit_cb", "micro_vit", "Context Broadcasting (arXiv:2210.08457)"),
    ("micro_vit_minus", "micro_vit_plus", "sharpening for smoothing attention (arXiv:2401.04301)"),
    ("micro_resnet_smooth", "micro_resnet", "spatial smoothing (arXiv:2105.12639)"),
    (
        "micro_resnet_mcdo_smooth", "micro_resnet_mcdo",
        "spatial smoothing with MC dropout (arXiv:2105.12639)",
    ),
    (
        "micro_resnet_mcdo_ensemble4", "micro_resnet_mcdo",
        "a training-phase ensemble with MC dropout (arXiv:2105.12639)",
    ),
)  # fmt: skip
"""Pairs of networks whose accuracy the papers compare, and in what they differ."""


def write_tables(entries: Sequence[Entry], runs: Path, root: str | None) -> None:
    """A table per group, of what is there."""
    torch.set_num_threads(1)
    for group, write in (
        ("cifar10", write_cifar10), ("cifar10_tenth", write_cifar10), ("cues", write_cues)
    ):  # fmt: skip
        own = [e for e in entries if e.group == group]
        if own:
            write(own, runs, root)
            print(f"results/{group}_micro.md written")


def network(entry: Entry, runs: Path) -> Student:
    """A trained network, from pixels to logits."""
    end = runs / entry.name / "snapshots" / "end.safetensors"
    return Student(load_model(str(end))).eval()


def images_of(entry: Entry, split: str, root: str | None) -> LabelledImages:
    """All images of a split, of which only some were scored in training."""
    wanted = load_model(entry.model, pretrained=False).preprocessing
    source = load_data(entry.data, root, wanted.size)[split]
    return Fit(entry.model, entry.data, wanted, 3, 10).labelled(split, source).in_memory(print)


def write_cifar10(entries: Sequence[Entry], runs: Path, root: str | None) -> None:
    """Accuracy, NLL and ECE of each network with the spread over seeds."""
    found: dict[str, list[dict[str, float]]] = {}
    test = images_of(entries[0], "test", root)
    for entry in entries:
        row = dict(score(network(entry, runs), test, Processes(), print))
        log = (runs / entry.name / "log.jsonl").read_text().splitlines()
        row["nll_train"] = json.loads(log[-1])["nll_train"]
        row["minutes"] = processor_minutes(runs / entry.name)
        found.setdefault(entry.label, []).append(row)
    described = json.loads((runs / entries[0].name / "training.json").read_text())
    lines = [
        "# Micro networks on a subset of CIFAR-10",
        "",
        f"{described['data']['train']['images']:,} training images and all {len(test):,} available "
        f"test images; recipe `{entries[0].recipe}` ({recipe_in_words(described['recipe'])}, "
        "crop and flip); mean ± "
        "standard deviation over seeds. Train NLL is measured on cropped and flipped images in the "
        "last epoch. Minutes are CPU time on one core, if recorded. Networks with MC dropout "
        "(`mcdo`) draw one mask per image; `ensemble4` is trained on the mean prediction of four "
        "passes.",
        "",
        "| network | seeds | test accuracy (%) | test NLL | test ECE | train NLL | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, rows in found.items():
        cells = [
            spread([100 * r["accuracy"] for r in rows], 2), spread([r["nll"] for r in rows], 3),
            spread([r["ece"] for r in rows], 3), spread([r["nll_train"] for r in rows], 3),
            spread([m for r in rows if not math.isnan(m := r["minutes"])], 1),
        ]  # fmt: skip
        lines.append(f"| {model} | {len(rows)} | {' | '.join(cells)} |")
    lines += ["", *against_the_paper(found), "", *footer(described, "make trained"), ""]
    write_atomically(RESULTS / f"{entries[0].group}_micro.md", "\n".join(lines))


def against_the_paper(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Differences of accuracy that the papers make claims about, with their standard errors."""
    lines = ["Differences that the papers make claims about, in accuracy:", ""]
    for one, other, what in DIFFERENCES:
        if one not in found or other not in found:
            continue
        a, b = ([100 * row["accuracy"] for row in found[name]] for name in (one, other))
        error = math.sqrt(sum(statistics.variance(v) / len(v) for v in (a, b) if len(v) > 1))
        gain = statistics.mean(a) - statistics.mean(b)
        lines.append(f"- {what} (`{one}` − `{other}`): {gain:+.2f} ± {error:.2f} points")
    return lines


def write_cues(entries: Sequence[Entry], runs: Path, root: str | None) -> None:
    """Accuracy where the cues agree, and which cue wins where they do not."""
    test, differing = (images_of(entries[0], split, root) for split in ("test", "conflict"))
    described = json.loads((runs / entries[0].name / "training.json").read_text())
    lines = [
        "# The packaged networks on cues",
        "",
        f"{len(test):,} images of `test`, {len(differing):,} of `conflict`; seed 0. `micro` is "
        f"{recipe_in_words(described['recipe'])}, on 10,000 images with crop and flip; "
        "`micro.slow` has half the learning rate and 1 + 9 epochs on 30,000 images without "
        "augmentation. Shape, texture and neither are fractions of the `conflict` images, whose "
        "shape and texture belong to different classes, that are classified by shape, by texture "
        "or as neither. Shape bias is shape / (shape + texture) (Geirhos et al., 2019, "
        "arXiv:1811.12231).",
        "",
        "| network | recipe | test accuracy (%) | test NLL | test ECE | shape | texture | "
        "neither | shape bias |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        net = network(entry, runs)
        row = score(net, test, Processes(), print)
        shares = conflict(net, differing)
        bias = "–" if shares.bias is None else f"{shares.bias:.3f}"
        lines.append(
            f"| {entry.model} | `{entry.recipe}` | {100 * row['accuracy']:.2f} "
            f"| {row['nll']:.3f} | {row['ece']:.3f} | {shares.shape:.3f} "
            f"| {shares.texture:.3f} | {shares.neither:.3f} | {bias} |"
        )
    lines += ["", *footer(described, "python benchmarks/trained.py --only cues"), ""]
    write_atomically(RESULTS / "cues_micro.md", "\n".join(lines))


def conflict(net: Student, images: LabelledImages) -> CueShares:
    """Which cue a network goes by."""
    answers = []
    with torch.inference_mode():
        for pixels, _ in plain_batches(images, range(len(images)), 256, print):
            answers.append(net(pixels).argmax(-1))
    kinds = images.split.attributes
    return cue_shares(torch.cat(answers).numpy(), kinds["shape"], kinds["texture"])


def processor_minutes(folder: Path) -> float:
    """How long a core worked for a training, by its own notes; NaN for one without them."""
    lines = (folder / "times.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.endswith("}")]  # a kill may tear the last
    return sum(row.get("processor_seconds", math.nan) for row in rows) / 60


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation; the value alone where there is one."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def recipe_in_words(recipe: dict) -> str:
    """What matters most, in a line."""
    return (
        f"{recipe['optimiser']}, lr {recipe['lr']:g}, weight decay {recipe['weight_decay']:g} on "
        f"{recipe['decayed']} parameters, {recipe['warmup']} + {recipe['epochs']} epochs, batch "
        f"{recipe['batch']}, {recipe['precision']}"
    )


def footer(described: dict, command: str) -> list[str]:
    """By what it was made."""
    versions = described["versions"]
    return [
        f"Made by `{command}` with retinoscope {__version__}, torch {versions['torch']}, timm "
        f"{versions['timm']}, on {versions['device']}, {versions['threads']} thread.",
    ]


def write_search(folder: Path) -> None:
    """Accuracy of every candidate of the build-up search, and the figure."""
    found = Search.load(folder, "result")
    draw(found, RESULTS / "build_up_cues.svg")
    recipe = found.protocol["recipe"]
    lines = [
        "# Where attention helps in a micro ResNet, on cues",
        "",
        "The build-up rule of Park & Kim (2022, arXiv:2202.06709, fig. 12a) as an experiment: "
        "starting at the end of `micro_resnet`, convolutional units are replaced by attention one "
        "by one. A replacement that raises the mean accuracy on held-out training images is kept; "
        "otherwise the search moves to the previous stage. "
        f"{len(found.seeds)} seeds; {found.protocol['held out']:,} held-out and "
        f"{found.protocol['tested on']:,} test images; {recipe_in_words(recipe)}.",
        "",
        "![Accuracy over the number of attention units](build_up_cues.svg)",
        "",
        "| attention per stage | total | parameters | held out (%) | test (%) | |",
        "|---|---|---|---|---|---|",
    ]
    for place, plan in enumerate(found.plans):
        cells = [spread((100 * row[place]).tolist(), 2) for row in (found.held_out, found.test)]
        verdict = "kept" if found.kept[place] else "no better"
        lines.append(
            f"| {plan} | {found.msas[place]} | {found.parameters[place]:,} | {' | '.join(cells)} | "
            f"{verdict if any(plan) else 'baseline'} |"
        )
    spreads, means = found.held_out_deviation, found.held_out_mean
    if means.max() - means[0] < spreads.max():
        lines += [
            "",
            "The best plan's lead is within the spread over seeds, so the result is inconclusive.",
        ]
    lines += ["", "Made by `python benchmarks/trained.py --only search`.", ""]
    write_atomically(RESULTS / "build_up_cues.md", "\n".join(lines))
    print("results/build_up_cues.md written")


def package_zoo(entries: Sequence[Entry], runs: Path) -> None:
    """Copy weights and logs into the package, with the hash of the first weights."""
    for entry in entries:
        source, target = runs / entry.name, folder_of(entry.model)
        target.mkdir(exist_ok=True)
        for snapshot in SNAPSHOTS.values():
            shutil.copyfile(
                source / "snapshots" / f"{snapshot}.safetensors", target / f"{snapshot}.safetensors"
            )
        for name in ("training.json", "log.jsonl"):
            shutil.copyfile(source / name, target / name)
        first = load_model(str(source / "snapshots" / "init.safetensors")).model
        plain = {"seed": entry.seed, "weights": state_hash(first)}
        write_atomically(target / "init.json", json.dumps(plain) + "\n")
        size = sum(file.stat().st_size for file in target.iterdir())
        print(f"{entry.model}: {size / 1e6:.2f} MB in the package")
