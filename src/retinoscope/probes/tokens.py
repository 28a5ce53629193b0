"""Which tokens and entries stand out: norms of positions, outliers, massive activations.

Large vision transformers keep global information in a few patch tokens of very large norm, unless
they have registers for it (Darcet et al., 2024, arXiv:2309.16588). Single channels may be thousands
of times larger than others (Sun et al., 2024, arXiv:2402.17762), and values at attention sinks are
often small (Xiao et al., 2024, arXiv:2309.17453). Norms are those of the state after each unit,
before the final norm, which would hide outliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import covered, measured_in
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import check, setting
from retinoscope.core.sight import Group, Sight
from retinoscope.core.wording import number, percent

if TYPE_CHECKING:
    from torch import Tensor

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_RATIOS = ("largest", "outlier_share", "massive", "prefix_ratio", "sink_value")
_FINAL = "its state is the output of the final norm, which makes all tokens about equally long"


def _error() -> Any:
    return axes("unit", unit="standard error", figure=False)


@answer
class TokensResult(Result):
    """Means over images after each unit, with standard errors over images.

    ``norm[q, u]`` is the quantile ``quantiles[q]`` of the norms of an image's positions after unit
    u. Prefix tokens are not among them: ``prefix_norm[u, t]`` is the norm of token t. An outlier is
    a position whose norm is larger than ``outlier`` times the median of its image. Medians in
    ratios leave out what is exactly 0, such as most entries after a ReLU.
    """

    probe: ClassVar[str] = "tokens"
    schema: ClassVar[int] = 1

    images: int
    outlier: float
    """Threshold of outliers, as a multiple of the median norm of the image's positions."""
    entries: tuple[int, ...]
    """For each unit: the median entry is that of every so-manieth entry."""
    quantiles: tuple[str, ...]
    depth: np.ndarray = axes("unit", unit="normalised", figure=False)
    norm: np.ndarray = axes(
        "quantile", "depth", unit="norm", rows="quantiles", x="depth",
        title="Quantiles of the norms of positions, by depth",
    )  # fmt: skip
    norm_error: np.ndarray = axes("quantile", "depth", unit="standard error", figure=False)
    largest: np.ndarray = axes(
        "unit", unit="largest / median", error="largest_error",
        title="Largest norm of a position against the median, by depth",
    )  # fmt: skip
    largest_error: np.ndarray = _error()
    outlier_share: np.ndarray = axes(
        "unit", unit="share of positions", error="outlier_share_error",
        title="Share of positions that are outliers, by depth",
    )  # fmt: skip
    outlier_share_error: np.ndarray = _error()
    massive: np.ndarray = axes(
        "unit", unit="largest / median", error="massive_error",
        title="Largest entry of the state against the median entry, by depth",
    )  # fmt: skip
    massive_error: np.ndarray = _error()
    massive_channel: np.ndarray = axes("unit", unit="channel", figure=False)
    """The channel that most often contains the largest entry."""
    massive_channel_share: np.ndarray = axes("unit", unit="share of images", figure=False)
    """In how many images it does."""
    prefix_ratio: np.ndarray = axes(
        "unit", unit="prefix tokens / median position", error="prefix_ratio_error",
        title="Mean norm of prefix tokens against that of positions, by depth",
    )  # fmt: skip
    prefix_ratio_error: np.ndarray = _error()
    prefix_norm: np.ndarray = axes(
        "unit", "token", unit="norm", title="Norms of prefix tokens", figure=False, draw="matrix"
    )
    sink_value: np.ndarray = axes(
        "unit", unit="value at the sink / mean", error="sink_value_error",
        title="Norm of the value at the strongest attention sink against the mean",
    )  # fmt: skip
    sink_value_error: np.ndarray = _error()
    outliers: np.ndarray = axes(
        "map", "row", "column", unit="share of images", draw="images", rows="last",
        title="How often each position is an outlier",
    )  # fmt: skip
    last: tuple[str, ...]
    """The unit of the map of outliers."""

    def findings(self) -> list[str]:
        """Outliers at the end, the most massive activation, and values at sinks."""
        share, most = float(self.outlier_share[-1]), int(np.nanargmax(self.massive))
        said = [
            f"{percent(share)} of positions after {self.units[-1]} are longer than "
            f"{number(self.outlier)} times the median; the longest is "
            f"{number(float(self.largest[-1]), 3)} times as long",
            f"the largest entry is {number(float(self.massive[most]), 3)} times the median entry "
            f"after {self.units[most]}, in {percent(float(self.massive_channel_share[most]))} of "
            f"images in channel {int(self.massive_channel[most])}",
        ]
        if np.isfinite(self.sink_value).any():
            least = int(np.nanargmin(self.sink_value))
            said.append(
                f"values at attention sinks are smallest in {self.units[least]}: "
                f"{number(float(self.sink_value[least]), 3)} times the mean norm"
            )
        return said


@dataclass(frozen=True)
class Tokens:
    """Norms of positions and prefix tokens, outliers and massive activations after every unit."""

    result: ClassVar[type[Result]] = TokensResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Do a few tokens or channels dominate the state?"
    reading: ClassVar[str] = (
        "If the upper quantiles leave the median behind, a few positions have much larger norms "
        "than the others: outlier tokens, which often hold global instead of local information. A "
        "largest entry thousands of times the median is a massive activation, mostly of the same "
        "channel in all images. If the value at an attention sink is short, a head that looks "
        "there does almost nothing."
    )

    outlier: float = setting(
        3.0, "Positions longer than this many times the median of their image are outliers.",
        above=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self, "tokens")

    @property
    def needs(self) -> Needs:
        """Images, with or without labels."""
        return Needs(taps=frozenset({"weights", "values"}))

    def watch(self, sight: Sight) -> dict[str, Tensor]:
        """Each image's norms, outliers, largest entries, and norms of values at sinks."""
        import torch

        from retinoscope.numerics.tokens import (
            largest_entries,
            median_entry,
            position_norms,
            positive_median,
            quantiles_of_sorted,
        )

        maps, prefix = sight.maps, sight.prefix
        norms = position_norms(maps).cpu()
        ordered = np.sort(norms.numpy(), axis=1)
        median, entry = map(torch.from_numpy, (positive_median(ordered), median_entry(maps)))
        peaks, outliers = (
            largest_entries(maps, prefix).cpu(),
            norms > self.outlier * median[:, None],
        )
        none = torch.full((len(norms), 0), torch.nan)
        tokens = none if prefix is None else torch.linalg.vector_norm(prefix, dim=-1).cpu()
        return {
            "norm": torch.from_numpy(quantiles_of_sorted(ordered, QUANTILES)),
            "ratios": torch.stack([
                torch.from_numpy(ordered[:, -1]) / median,
                outliers.sum(1) / norms.shape[1],
                peaks.amax(1) / entry,
                tokens.mean(1) / median,
                _sink_value(sight, len(norms)),
            ], 1),
            "tokens": tokens,
            "peaks": peaks,
            "outliers": outliers.unflatten(1, maps.shape[2:]),
            "normalised": torch.full((len(norms),), sight.normalised),
        }  # fmt: skip

    def gather(self, group: Group) -> Partial:
        """Means over the images of a group; counts of outliers and of the largest channel."""
        from retinoscope.numerics.running import Mean

        partial: dict[str, Any] = {}
        for name, rows in group.rows.items():
            for what in ("norm", "ratios", "tokens"):
                partial |= Mean.of(rows[what]).to_arrays(f"{name}/{what}")
            channels = rows["peaks"].argmax(1)
            partial[f"{name}/channels"] = np.bincount(channels, minlength=rows["peaks"].shape[1])
            partial[f"{name}/outliers"] = rows["outliers"].sum(0)
            partial[f"{name}/normalised"] = rows["normalised"].any()
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> TokensResult:
        """Means over all images."""
        from retinoscope.numerics.ragged import padded
        from retinoscope.numerics.running import Mean
        from retinoscope.numerics.tokens import entry_step

        names = [unit.name for unit in measured_in(anatomy, partials)]
        final = _final(names, partials)
        names = [name for name in names if name != final]
        if not names:
            raise NotApplicable(f"looks at states before the final norm; {anatomy.model} has none")
        norm, ratios, tokens = (
            [Mean.merge_arrays(partials, f"{name}/{what}") for name in names]
            for what in ("norm", "ratios", "tokens")
        )
        if not np.isfinite([mean.value[_RATIOS.index("massive")] for mean in ratios]).any():
            raise NotApplicable(
                f"compares entries with the median; all states of {anatomy.model} are 0"
            )
        counts = [_summed(partials, f"{name}/channels") for name in names]
        images = max(mean.count for mean in norm)
        coverage = covered(anatomy, names)
        skipped = tuple((n, _FINAL if n == final else reason) for n, reason in coverage.skipped)
        steps = [
            entry_step((unit.channels, *unit.grid.resolution))
            for unit in anatomy
            if unit.name in names and unit.grid is not None
        ]
        arrays: dict[str, Any] = {}
        for k, name in enumerate(_RATIOS):
            arrays[name] = np.array([mean.value[k] for mean in ratios])
            arrays[f"{name}_error"] = np.array([mean.error[k] for mean in ratios])
        return TokensResult(
            coverage=replace(coverage, skipped=skipped),
            images=images,
            outlier=self.outlier,
            entries=tuple(steps),
            quantiles=tuple(f"{100 * share:g} %" for share in QUANTILES),
            depth=np.arange(len(names)) / max(1, len(names) - 1),
            norm=np.array([mean.value for mean in norm]).T,
            norm_error=np.array([mean.error for mean in norm]).T,
            **arrays,
            massive_channel=np.array([count.argmax() for count in counts]),
            massive_channel_share=np.array([count.max() / count.sum() for count in counts]),
            prefix_norm=padded(mean.value for mean in tokens),
            outliers=_summed(partials, f"{names[-1]}/outliers")[None] / images,
            last=(f"after {names[-1]}",),
        )


def _sink_value(sight: Sight, images: int) -> Tensor:
    """The mean over heads and attentions; NaN if the unit has none."""
    import torch

    from retinoscope.numerics.attention import value_norm_at_sinks

    weights, values = sight.tap("weights"), sight.tap("values")
    fit = len(weights) == len(values) and all(
        w.shape[:2] == v.shape[:2] and w.shape[-1] == v.shape[-2]
        for w, v in zip(weights, values, strict=True)
    )
    if not weights or not fit:
        return torch.full((images,), torch.nan)
    heads = [value_norm_at_sinks(w, v) for w, v in zip(weights, values, strict=True)]
    return torch.cat(heads, 1).mean(1).cpu()


def _final(names: Sequence[str], partials: Sequence[Partial]) -> str | None:
    """The last unit, if its state is that after the final norm, unlike most others."""
    normalised = [
        any(bool(part.get(f"{name}/normalised", False)) for part in partials) for name in names
    ]
    return names[-1] if names and normalised[-1] and 2 * sum(normalised) <= len(names) else None


def _summed(partials: Sequence[Partial], name: str) -> np.ndarray:
    return np.sum([part[name] for part in partials if name in part], axis=0)
