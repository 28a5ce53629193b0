"""Compare the results of all probes between this revision and another, on the same weights.

Each network is measured by two processes, one for each checkout, with weights from the same files.
Weights of timm's networks are drawn at order one, so that every branch has an effect; the micro
networks have their packaged weights. Snapshots for the trajectory are three random draws of the
network. Every array and number is compared by name, relative to the largest value of its array;
names that only one revision has are listed. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = {
    "resnet18": "float32",
    "vit_tiny_patch16_224": "float64",
    "swin_tiny_patch4_window7_224": "float32",
    "micro_resnet": "float64",
    "micro_vit": "float64",
    "micro_alternet": "float32",
}
"""Networks, each with the precision of its measurement."""
BARS = {"float64": 1e-12, "float32": 1e-5}
SETTINGS: dict[str, dict[str, Any]] = {
    "fourier": {},
    "variance": {},
    "hessian": {"k": 2, "batch": 4, "batches": 2, "products": 8},
    "landscape": {"points": 3, "at_most": 8, "max_images": 8},
    "trajectory": {"at_most": 8, "max_images": 8},
}
"""Settings of each probe; a revision ignores names that it does not know."""
IMAGES = 64


def main() -> None:
    """Measure with both checkouts and print a line per network and probe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    parser.add_argument("--models", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # for the processes
    arguments = parser.parse_args()
    if arguments.into:
        measure(arguments.models[0], arguments.into)
        return
    if arguments.against is None or not (arguments.against / "src" / "retinoscope").is_dir():
        raise SystemExit("Name another checkout: --against FOLDER, made with git worktree add.")
    print(f"{'network':29} {'probe':10} {'precision':9} arrays  difference  bar")
    met = [compare(name, arguments.against) for name in arguments.models]
    sys.exit(not all(met))


def compare(name: str, other: Path) -> bool:
    """Measure one network with both checkouts; returns whether every bar is met."""
    checkouts = (Path(__file__).resolve().parents[1], other.resolve())
    with tempfile.TemporaryDirectory(prefix="retinoscope-revisions-") as temporary:
        folder = Path(temporary)
        write_weights(name, folder / "weights")
        for place, checkout in enumerate(checkouts):
            environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--models", name, "--into", str(folder / "new")]
            subprocess.run(command, env=environment, check=True)
            (folder / "new").rename(folder / f"{place}")
        return all([report(name, probe, folder) for probe in SETTINGS])


def specified(name: str) -> str:
    """The model's name; timm's networks get the ten classes of cues, so that labels can be used."""
    return name if name.startswith("micro_") else f"{name}:num_classes=10"


def write_weights(name: str, folder: Path) -> None:
    """Write three sets of weights; the last one is that of the measured network."""
    from safetensors.torch import save_file

    from retinoscope import load_model
    from retinoscope.models.order_one import draw_at_order_one

    folder.mkdir()
    micro = name.startswith("micro_")
    for place in range(3):
        model = load_model(specified(name), pretrained=micro).model
        if place < 2 or not micro:
            draw_at_order_one(model, seed=place)
        save_file(model.state_dict(), folder / f"epoch-{place}.safetensors")


def measure(name: str, folder: Path) -> None:
    """Measure all probes of one network with the code of this process, into one file each."""
    import torch

    import retinoscope

    torch.set_num_threads(1)
    weights = folder.parent / "weights"
    subject = retinoscope.load_subject(
        specified(name), "cues", weights=str(weights / "epoch-2.safetensors"), images=IMAGES,
        precision=NETWORKS[name],
    )  # fmt: skip
    folder.mkdir()
    for probe, settings in SETTINGS.items():
        kind = getattr(import_module(f"retinoscope.probes.{probe}"), probe.capitalize())
        known = {field.name for field in fields(kind)}
        given = {key: value for key, value in settings.items() if key in known}
        if "snapshots" in known:
            given["snapshots"] = str(weights)
        result = retinoscope.measure(kind(**given), subject)
        numbers = dict(walk("", {"values": result.values()}))
        np.savez(folder / f"{probe}.npz", **result.arrays(), **numbers)


def walk(path: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """All plain numbers in nested values, by path, except those of the protocol."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("protocol", "seconds"):
                # The coverage of units was five fields in earlier revisions, and is one now.
                at = path if key == "coverage" else f"{path}.{key}".lstrip(".")
                yield from walk(at, inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from walk(f"{path}.{place}", inner)
    elif isinstance(value, bool | int | float):
        yield path, np.asarray(value, dtype=np.float64)


def report(name: str, probe: str, folder: Path) -> bool:
    """Print the line of one probe; returns whether its bar is met."""
    here, there = (dict(np.load(folder / str(place) / f"{probe}.npz")) for place in range(2))
    both = [key for key in here if key in there]
    worst = max((difference(here[key], there[key]) for key in both), default=np.inf)
    precision = NETWORKS[name]
    met = worst <= BARS[precision]
    word = "met" if met else "MISSED"
    print(
        f"{name:29} {probe:10} {precision:9} {len(both):6}  {worst:10.1e}  "
        f"{BARS[precision]:.0e} {word}",
        flush=True,
    )
    for where, keys in (
        ("here", here.keys() - there.keys()),
        ("there", there.keys() - here.keys()),
    ):
        if keys:
            print(f"{'':29} only {where}: {', '.join(sorted(keys))}")
    return met


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference relative to the largest value; infinite if shapes or NaNs differ."""
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    if not a.size or np.array_equal(a, b, equal_nan=True):
        return 0.0
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    return float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max()))


if __name__ == "__main__":
    main()
