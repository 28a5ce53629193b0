"""A small result of any class, with random numbers, made from what its fields declare."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from retinoscope.core.coverage import Coverage
from retinoscope.core.result import Result

COVERAGE = Coverage(
    units=("stem", "a.attn", "a.mlp", "b.down", "b.attn"),
    kinds=("stem", "attention", "mlp", "conv", "attention"), stages=(None, 1, 1, 2, 2),
    subsamples=(False, False, False, True, False), skipped=(("head", "its state has no grid"),),
)  # fmt: skip


def made_up(cls: type[Result], seed: int = 0) -> Result:
    """Every array of the shape that its axes ask for; names where they are declared."""
    generator = np.random.default_rng(seed)
    sizes: dict[str, int] = {"unit": len(COVERAGE.units)}
    given: dict[str, Any] = {"coverage": COVERAGE}
    for name, described in cls.described().items():
        about = described.metadata
        shape = [sizes.setdefault(axis, 3 + len(sizes)) for axis in about["axes"]]
        if about["draw"] == "images" and len(shape) == 4 and not about["choices"]:
            shape[-1] = 3
        given[name] = generator.uniform(-0.2, 1.0, shape)
        if about["title"] == "":  # coordinates and errors
            given[name] = np.abs(given[name]) + 0.01
        rows = 1 if about["choices"] else 0
        for key, axis in (
            ("rows", rows), ("choices", 0), ("row_groups", 0), ("points", -1),
            ("column_groups", -1),
        ):  # fmt: skip
            if about[key]:
                given[about[key]] = tuple(f"{key} {i // 2}.{i}" for i in range(shape[axis]))
        if about["marks"]:
            given[about["marks"]] = ((0.5, "half way"),)
    for field in fields(cls):
        if field.name in given or not (field.default is field.default_factory is MISSING):
            continue
        plain = {"int": 3, "float": 0.5, "str": "word", "bool": True}
        given[field.name] = plain.get(str(field.type), None if "None" in str(field.type) else ())
    return cls(**given)
