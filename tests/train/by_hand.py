"""A training folder written by hand, as a training would leave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS: tuple[dict[str, Any], ...] = (
    {"epoch": 0, "step": 0, "lr": 0.0, "nll_train": None, "accuracy": 0.1015, "nll": 2.3141,
     "ece": 0.0427, "images": 1000},
    {"epoch": 1, "step": 40, "lr": 0.0625, "nll_train": 2.1372, "accuracy": 0.2718, "nll": 1.9773,
     "ece": 0.0631, "images": 1000},
    {"epoch": 2, "step": 80, "lr": 0.125, "nll_train": 1.8391, "accuracy": 0.4653, "nll": 1.5517,
     "ece": 0.0519, "images": 1000},
    {"epoch": 3, "step": 120, "lr": 0.03125, "nll_train": 1.7126, "accuracy": 0.5867,
     "nll": 1.2239, "ece": 0.0388, "images": 1000},
)  # fmt: skip
"""Two epochs of warm-up and one more."""


def training(model: str = "tiny", **recipe: Any) -> dict[str, Any]:
    """What ``training.json`` says."""
    images = {
        "data": "cues", "of": 5000, "size": "16×16", "labels": "yes", "left out": 0,
        "balanced": True, "preprocessing": {"mean": [0.5], "std": [0.25], "size": [16, 16]},
    }  # fmt: skip
    augmentation = {"crop": 0.125, "flip": True, "mixup": 0.8, "smoothing": 0.1}
    return {
        "retinoscope training": 1,
        "name": "micro",
        "recipe": {
            "model": model, "data": "cues", "epochs": 1, "batch": 96, "optimiser": "adamw",
            "lr": 0.125, "weight_decay": 0.05, "schedule": "cosine", "warmup": 2,
            "augmentation": augmentation, "milestones": [], "precision": "float32", "seed": 7,
        } | recipe,
        "data": {
            "called": "cues",
            "train": images | {"split": "train", "images": 3840,
                               "augmentation": augmentation | {"seed": 7}},
            "test": images | {"split": "test", "images": 1000, "augmentation": None},
        },
        "steps": {"total": 120, "per_epoch": 40, "warmup": 80},
        "model": {"name": model, "weights": "untrained, seed 7", "parameters": 1234},
        "versions": {"retinoscope": "0.1.0", "torch": "2.15.0"},
    }  # fmt: skip


def log(rows: Any = ROWS) -> str:
    """What ``log.jsonl`` says."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write_training(folder: Path, rows: Any = ROWS, **recipe: Any) -> Path:
    """A folder with the two files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training.json").write_text(json.dumps(training(**recipe)))
    (folder / "log.jsonl").write_text(log(rows))
    return folder
