"""Whether tokens become alike with depth (Dovonon et al., 2024, arXiv:2401.04301).

Split the tokens X (n × d) of an image into their mean (LFC, the low-frequency component) and the
rest (HFC): X = LFC + HFC. A network oversmooths if ‖HFC‖/‖LFC‖ goes to 0 with depth. Two further
measures of the same question: the mean cosine between different tokens, and the effective rank of
the centred tokens (Roy & Vetterli, 2007). Such numbers are comparable only if it is stated which
pairs, which tokens and which centring they use; here these are settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Coverage, by_kind, covered, measured_in
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import UNTRAINED, Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import check, setting
from retinoscope.core.sight import Group, Sight
from retinoscope.core.wording import number

if TYPE_CHECKING:
    from torch import Tensor

    from retinoscope.numerics.running import Mean

_CHANGED = "log₁₀ HFC/LFC"
_ZERO = "the mean of its tokens is 0 or not finite"
_MEASURES = ("ratio", "step", "cosine", "absolute", "rank")


@answer
class OversmoothingResult(Result):
    """``ratio[u]`` is ‖HFC‖/‖LFC‖ after unit u; ``step`` is log₁₀ of output over input.

    ``cosine[u]`` is the mean signed cosine between different tokens. ``absolute`` (mean |cosine|)
    and ``rank`` (effective rank, from 0 to 1) are measured on the first images only, as many as
    their settings say; NaN if none. All are means over images; errors are standard errors over
    images. ``compared[k, u]`` is the ratio of network k; empty unless ``untrained`` is set.
    """

    probe: ClassVar[str] = "oversmoothing"
    schema: ClassVar[int] = 1

    images: int
    absolute_images: int
    rank_images: int
    networks: tuple[str, ...]
    ratio: np.ndarray = axes(
        "unit", unit="‖HFC‖/‖LFC‖", error="ratio_error", log=True,
        title="Differences between tokens relative to their mean, by depth",
    )  # fmt: skip
    ratio_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    step: np.ndarray = axes(
        "unit", unit="log₁₀ HFC/LFC, output − input", error="step_error", changes=_CHANGED,
        title="Change of the ratio by each unit: below 0 it smooths",
    )  # fmt: skip
    step_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    depth: np.ndarray = axes("depth", unit="normalised", figure=False)
    compared: np.ndarray = axes(
        "network", "depth", unit="‖HFC‖/‖LFC‖", x="depth", rows="networks", log=True,
        title="The same ratio with the network's own weights and with random ones",
    )  # fmt: skip
    cosine: np.ndarray = axes(
        "unit", unit="mean cosine", error="cosine_error",
        title="Mean cosine between different tokens, by depth",
    )  # fmt: skip
    cosine_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    absolute: np.ndarray = axes(
        "unit", unit="mean |cosine|", error="absolute_error",
        title="Mean |cosine| between different tokens, by depth",
    )  # fmt: skip
    absolute_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    rank: np.ndarray = axes(
        "unit", unit="effective rank / largest possible", error="rank_error",
        title="Effective rank of the centred tokens, by depth",
    )  # fmt: skip
    rank_error: np.ndarray = axes("unit", unit="standard error", figure=False)

    def findings(self) -> list[str]:
        """Where the ratio begins and ends, and what each kind of unit does to it."""
        lowest = int(np.nanargmin(self.ratio))
        said = [
            f"HFC/LFC goes from {number(self.ratio[0], 3)} after {self.units[0]} to "
            f"{number(self.ratio[-1], 3)} after {self.units[-1]} (lowest "
            f"{number(self.ratio[lowest], 3)} after {self.units[lowest]}), the mean cosine between "
            f"tokens from {number(self.cosine[0], 2)} to {number(self.cosine[-1], 2)}"
        ]
        if len(self.compared) > 1:
            said.append(
                f"with random weights, HFC/LFC ends at {number(self.compared[1, -1], 3)} instead "
                f"of {number(self.compared[0, -1], 3)}"
            )
        kinds = by_kind(self.kinds, self.subsamples, self.step, _CHANGED)
        return said + [text for text in kinds if not text.startswith("no ")]


@dataclass(frozen=True)
class Oversmoothing:
    """‖HFC‖/‖LFC‖ of the tokens and the cosine between them, after every unit."""

    result: ClassVar[type[Result]] = OversmoothingResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Do tokens become alike with depth?"
    reading: ClassVar[str] = (
        "The ratio compares what differs between tokens (HFC) with what they share (LFC). If it "
        "falls towards 0 with depth, all tokens become the same: the network oversmooths. Dovonon "
        "et al. (2024) find that this happens in ViTs with random weights, but not in trained "
        "ones, so attention does not have to oversmooth. The cosine says the same from the other "
        "side: 1 means that all tokens point in the same direction, 0 that they are unrelated. "
        "It is signed, and a token is not paired with itself. In a CNN, the tokens are the "
        "positions of the map."
    )

    prefix: bool = setting(
        True,
        "Count class and register tokens as tokens, as in the paper. False: only the positions of "
        "the grid.",
    )
    centred: bool = setting(
        False,
        "Subtract the mean token before cosines are taken; unrelated tokens then have a cosine of "
        "−1/(n − 1). The ratio and the rank do not depend on it.",
    )
    absolute: int = setting(
        0,
        "Also measure the mean |cosine| on this many images, the first of the split. It needs all "
        "pairs of tokens.",
        at_least=0,
    )
    ranks: int = setting(
        0,
        "Also measure the effective rank of the centred tokens on this many images, the first of "
        "the split. It needs singular values.",
        at_least=0,
    )
    untrained: bool = setting(
        False, "Also measure the ratio of the same network with random weights, from the seed."
    )

    def __post_init__(self) -> None:
        check(self, "oversmoothing")

    @property
    def needs(self) -> Needs:
        """Images, with or without labels; if requested, the network with random weights."""
        return Needs(others=(UNTRAINED,) if self.untrained else ())

    def watch(self, sight: Sight) -> dict[str, Tensor]:
        """Each image's ratio, cosine, |cosine| and rank (N,); NaN for images without the latter."""
        from retinoscope.numerics.smoothing import (
            component_norms,
            effective_rank,
            mean_absolute_cosine,
            mean_cosine,
        )

        parts = [sight.maps.flatten(2).mT]
        if self.prefix and sight.prefix is not None:
            parts.insert(0, sight.prefix)
        high, low = component_norms(parts)
        kept = {"ratio": high / low}
        if sight.subject:  # of the network with random weights, only the ratio is shown
            return kept
        kept["cosine"] = mean_cosine(parts, self.centred)
        if self.absolute:
            kept["absolute"] = _of_first(
                self.absolute, sight, parts, lambda x: mean_absolute_cosine(x, self.centred)
            )
        if self.ranks:
            kept["rank"] = _of_first(self.ranks, sight, parts, effective_rank)
        return kept

    def gather(self, group: Group) -> Partial:
        """The means of each unit over the images of a group."""
        partial: dict[str, Any] = {}
        random = group.others[UNTRAINED].rows if self.untrained else {}
        before: np.ndarray | None = None
        for unit in group.anatomy:
            rows = group.rows.get(unit.name)
            now = None if rows is None else _log10(rows["ratio"])
            if rows is not None and now is not None:
                step = now - (np.nan if before is None else before)
                arrays = {**rows, "step": step}
                if unit.name in random:
                    arrays["untrained"] = random[unit.name]["ratio"]
                for name, array in arrays.items():
                    partial |= _mean(array).to_arrays(f"{unit.name}/{name}")
            before = now
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> OversmoothingResult:
        """Means over all images."""
        seen = [unit.name for unit in measured_in(anatomy, partials)]
        names = [name for name in seen if _merged(partials, name, "ratio").count]
        if not names:
            raise NotApplicable(f"compares tokens with their mean; {_ZERO}, after every unit")
        arrays: dict[str, Any] = {}
        images: dict[str, int] = {}
        for what in (*_MEASURES, "untrained"):
            means = [_merged(partials, name, what) for name in names]
            images[what] = max(mean.count for mean in means)
            arrays[what] = np.array([mean.value if mean.count else np.nan for mean in means])
            arrays[f"{what}_error"] = np.array([mean.error for mean in means])
        networks = ("own weights", "random weights") if self.untrained else ()
        random, _ = arrays.pop("untrained"), arrays.pop("untrained_error")
        compared = [arrays["ratio"], random][: len(networks)]
        return OversmoothingResult(
            coverage=_covered(anatomy, names, seen),
            images=images["ratio"],
            absolute_images=images["absolute"],
            rank_images=images["rank"],
            networks=networks,
            depth=np.arange(len(names)) / max(1, len(names) - 1),
            compared=np.array(compared).reshape(len(networks), len(names)),
            **arrays,
        )


def _of_first(
    count: int, sight: Sight, parts: Sequence[Tensor], measure: Callable[[Tensor], Tensor]
) -> Tensor:
    """A measure of the first ``count`` images of the split, as one row per image; else NaN."""
    import torch

    chosen = [row for row, index in enumerate(sight.indices) if index < count]
    found = torch.full((len(sight.indices),), torch.nan, dtype=torch.float64)
    if chosen:
        tokens = torch.cat([part[chosen] for part in parts], 1)
        found[chosen] = measure(tokens).cpu().double()
    return found


def _log10(ratio: np.ndarray) -> np.ndarray:
    """The logarithm of ratios; NaN if there is none."""
    return np.log10(np.where((ratio > 0) & np.isfinite(ratio), ratio, np.nan))


def _mean(rows: np.ndarray) -> Mean:
    """The mean over the images for which there is a value."""
    from retinoscope.numerics.running import Mean

    return Mean.of(rows[np.isfinite(rows)])


def _merged(partials: Sequence[Partial], unit: str, what: str) -> Mean:
    """The mean over all images; its count is 0 if there is none."""
    from retinoscope.numerics.running import Mean

    name, none = f"{unit}/{what}", Mean.of(np.empty(0))
    there = (Mean.from_arrays(part, name) for part in partials if f"{name}.count" in part)
    return Mean.merge([none, *there])


def _covered(anatomy: Anatomy, names: Sequence[str], seen: Sequence[str]) -> Coverage:
    """The coverage; units whose ratio is undefined for every image are skipped with the reason."""
    found = covered(anatomy, names)
    reasons = {name: _ZERO for name in seen if name not in names}
    skipped = tuple((name, reasons.get(name, why)) for name, why in found.skipped)
    return replace(found, skipped=skipped)
