"""Trained weights that come with the package: a folder per network, with its log.

Each was trained on ``cues`` by the recipe ``micro`` with seed 0; ``micro_vit_gap`` and
``micro_swin``, which learn little in so few images, by ``micro.slow``. Its folder holds the
weights behind the warm-up and at the end, the log, and ``training.json``, which says by what
recipe, on which data and with which versions. The first weights are not here: the seed gives them
again, and ``init.json`` has their hash. All of it is made again by::

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
"""By the tag that timm has for them; the first one is what a name without a tag means."""


def folder_of(name: str) -> Path:
    """Where the weights and the log of a network lie."""
    return Path(__file__).parent / name


def with_weights(cfgs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Timm's configurations by name, with the files of those networks whose weights are here.

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
