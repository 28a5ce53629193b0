"""A probe of a user's own: a fixed group of images, taps, a view, and another subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from retinoscope import Needs, Result
from retinoscope.core.result import answer, axes
from retinoscope.core.settings import setting
from retinoscope.core.sight import Group, Sight
from retinoscope.data.views import Noised


@answer
class KinshipResult(Result):
    """``entropy[u, h]`` of head h; ``kinship[u, v]`` of unit u with the other model's unit v."""

    probe: ClassVar[str] = "kinship"
    images: int
    entropy: np.ndarray = axes("unit", "head", unit="nats", figure=False)
    kinship: np.ndarray = axes("unit", "unit", unit="cosine of Gram matrices", figure=False)


@dataclass(frozen=True)
class Kinship:
    """Entropy of attention, and likeness of Gram matrices with another model's, under noise."""

    result: ClassVar[type[Result]] = KinshipResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Do two networks order the same images alike?"
    reading: ClassVar[str] = ""
    other: str = setting("", "The other model.")
    group: int = setting(16, "Images that are compared with each other.")

    @property
    def needs(self) -> Needs:
        return Needs(
            view=Noised(std=0.2, seed=3), others=(self.other,), maps=False, group=self.group,
            taps=frozenset({"weights"}),
        )  # fmt: skip

    def watch(self, sight: Sight) -> dict[str, torch.Tensor]:
        """The Gram matrix of the group, and the mean entropy of each head."""
        rows = sight.features.double()
        kept = {"gram": rows @ rows.T}
        for weights in sight.tap("weights"):
            kept["entropy"] = -torch.xlogy(weights.double(), weights.double()).sum(-1).mean((1, 3))
        return kept

    def gather(self, group: Group) -> dict[str, np.ndarray]:
        """Products of the Gram matrices of all units of both models."""
        mine, theirs = (
            np.stack([row["gram"].ravel() for row in one.rows.values()])
            for one in (group, group.others[self.other])
        )
        heads = [row["entropy"].sum(0) for row in group.rows.values() if "entropy" in row]
        return {
            "entropy": np.stack(heads), "images": np.array(len(group.indices)),
            "both": mine @ theirs.T, "mine": (mine**2).sum(1), "theirs": (theirs**2).sum(1),
        }  # fmt: skip

    def combine(self, anatomy, partials: Sequence[dict[str, np.ndarray]]) -> KinshipResult:
        """Sums over groups."""
        total = {key: sum(partial[key] for partial in partials) for key in partials[0]}
        return KinshipResult(
            images=int(total["images"]),
            entropy=total["entropy"] / total["images"],
            kinship=total["both"] / np.sqrt(np.outer(total["mine"], total["theirs"])),
        )
