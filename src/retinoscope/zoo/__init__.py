"""Trained weights that come with the package: one folder per network, with its log.

Each was trained on ``cues`` by the recipe ``micro`` with seed 0; ``micro_vit_gap`` and
``micro_swin``, which learn little from so few images, by ``micro.slow``. Each folder contains the
weights after warm-up and at the end, the log, and ``training.json`` with the recipe, the data and
the versions. The initial weights are not stored: they can be regenerated from the seed, and
``init.json`` has their hash. To reproduce everything::

    python benchmarks/trained.py --only cues --package

timm knows the weights as ``micro_vit.cues`` and ``micro_vit.cues_warmup``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = (
    "micro_resnet", "micro_preact_resnet", "micro_vit", "micro_vit_gap", "micro_swin",
    "micro_pit", "micro_alternet",
)  # fmt: skip
SNAPSHOTS = {"cues": "end", "cues_warmup": "warmup"}
"""By timm tag; the first one is used for a name without a tag."""


def folder_of(name: str) -> Path:
    """The folder with the weights and the log of a network."""
    return Path(__file__).parent / name


def with_weights(cfgs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Timm's configurations by name, with the weight files of networks in the zoo.

    Example:
        >>> list(with_weights({"micro_vit": {}, "vit_tiny_patch4_cifar": {}}))
        ['micro_vit.cues', 'micro_vit.cues_warmup', 'vit_tiny_patch4_cifar']
    """
    found: dict[str, Any] = {}
    for name, cfg in cfgs.items():
        if name not in NAMES:
            found[name] = cfg
            continue
        for tag, snapshot in SNAPSHOTS.items():
            file = folder_of(name) / f"{snapshot}.safetensors"
            found[f"{name}.{tag}"] = {**cfg, "file": str(file)}
    return found
