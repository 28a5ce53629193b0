"""Where attention looks: how widely, how far, and at which tokens.

Entropy of each query's weights, mean distance between queries and the keys they look at
(Dosovitskiy et al., 2021, arXiv:2010.11929), weight on prefix tokens, normalised mutual information
between the positions of queries and keys (Park et al., 2023, arXiv:2305.00729: near 0, all queries
look at the same place), attention sinks (Xiao et al., 2024, arXiv:2309.17453) and stable rank (Noci
et al., 2022, arXiv:2206.03126), for any attention that the graph shows, fused or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Coverage, covered, measured_in
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import check, setting
from retinoscope.core.sight import Group, Sight
from retinoscope.core.unit import Kind
from retinoscope.core.wording import number, percent

if TYPE_CHECKING:
    from torch import Tensor

    from retinoscope.anatomy.reach import Reach

STATISTICS = (
    "entropy", "normalised_entropy", "distance", "prefix_share", "mutual_information", "sink",
)  # fmt: skip
_WHY = (
    "",
    "the weights of its queries do not sum to 1, so nothing is measured",
    "the graph does not show where its queries or keys are, so distance and share of prefix tokens "
    "are unknown, and mutual information counts all of them",
    "its queries are tokens without a position (class attention), so distance and mutual "
    "information do not exist",
    "its queries see one key only, so normalised entropy and mutual information do not exist",
)


def _depth(unit: str, title: str, error: str) -> Any:
    return axes("unit", unit=unit, error=error, title=title)


def _heads(unit: str, title: str = "") -> Any:
    return axes("unit", "head", unit=unit, title=title, figure=bool(title), draw="matrix")


def _error() -> Any:
    return axes("unit", unit="standard error", figure=False)


@answer
class AttentionResult(Result):
    """Means over images, for each unit with attention and each head.

    Arrays by unit are means over heads, with standard errors over images; ``head_…[u, h]`` is head
    h of unit u, NaN if it has fewer heads. The heads of several attentions in a unit follow one
    another. ``remarks`` says for each unit why a value is NaN.
    """

    probe: ClassVar[str] = "attention"
    schema: ClassVar[int] = 1

    images: int
    heads: tuple[int, ...]
    """Number of heads of each unit."""
    remarks: tuple[tuple[str, str], ...]
    """Units that are not measured completely, with the reason."""
    entropy: np.ndarray = _depth("nats", "Entropy of attention, by depth", "entropy_error")
    entropy_error: np.ndarray = _error()
    normalised_entropy: np.ndarray = _depth(
        "entropy / log(keys)", "Entropy as a share of the largest possible",
        "normalised_entropy_error",
    )  # fmt: skip
    normalised_entropy_error: np.ndarray = _error()
    distance: np.ndarray = _depth("pixels", "Mean attention distance, by depth", "distance_error")
    distance_error: np.ndarray = _error()
    mutual_information: np.ndarray = _depth(
        "normalised mutual information", "How much a query's position decides where it looks",
        "mutual_information_error",
    )  # fmt: skip
    mutual_information_error: np.ndarray = _error()
    prefix_share: np.ndarray = _depth(
        "share of weight", "Weight on prefix tokens, by depth", "prefix_share_error"
    )
    prefix_share_error: np.ndarray = _error()
    sink: np.ndarray = _depth(
        "largest / median", "Strength of the strongest attention sink, by depth", "sink_error"
    )
    sink_error: np.ndarray = _error()
    stable_rank: np.ndarray = _depth("stable rank", "Stable rank of attention", "stable_rank_error")
    stable_rank_error: np.ndarray = _error()
    head_entropy: np.ndarray = _heads("nats", "Entropy of each head")
    head_normalised_entropy: np.ndarray = _heads("entropy / log(keys)")
    head_distance: np.ndarray = _heads("pixels", "Mean attention distance of each head")
    head_mutual_information: np.ndarray = _heads("normalised mutual information")
    head_prefix_share: np.ndarray = _heads("share of weight")
    head_sink: np.ndarray = _heads("largest / median")
    head_stable_rank: np.ndarray = _heads("stable rank")
    maps: np.ndarray = axes(
        "head", "map", "row", "column", unit="weight / largest weight", draw="images",
        rows="captions", choices="head_names", over="pictures", limits=(0.0, 1.0),
        title="Where the first prefix token looks, or else all positions on average",
    )  # fmt: skip
    largest_weight: np.ndarray = axes("head", "map", unit="attention weight", figure=False)
    """The weight that is 1 in each map."""
    captions: tuple[str, ...]
    """The index of the image and the unit of each map."""
    head_names: tuple[str, ...]
    """The mean over heads, then each head; maps are NaN for heads that a unit does not have."""
    pictures: np.ndarray = axes(
        "image", "row", "column", "colour", unit="intensity", draw="images", figure=False
    )
    """The images of the maps, cropped and resized, stretched to 0 … 1."""

    def findings(self) -> list[str]:
        """The extremes over units, or the values of a single one."""
        said = []
        distances = [f"{unit} ({number(d)} px)" for unit, d in self._known(self.distance)]
        if len(distances) > 1:
            said.append(
                f"attention looks farthest in {distances[0]} and nearest in {distances[-1]}"
            )
        elif distances:
            said.append(f"attention looks this far on average: {distances[0]}")
        shares = [
            f"{unit} ({percent(share)} of the largest entropy)"
            for unit, share in self._known(self.normalised_entropy)
        ]
        if len(shares) > 1:
            said.append(f"it is most even in {shares[0]} and most selective in {shares[-1]}")
        elif shares:
            said.append(f"it is as even as this: {shares[0]}")
        for unit, share in self._known(self.prefix_share)[:1]:
            said.append(f"prefix tokens get most weight in {unit}: {percent(share)}")
        return said

    def _known(self, values: np.ndarray) -> list[tuple[str, float]]:
        """The units that have a value, with the value, from the largest to the smallest."""
        found = [(u, float(v)) for u, v in zip(self.units, values, strict=True) if np.isfinite(v)]
        return sorted(found, key=lambda pair: -pair[1])


@dataclass(frozen=True)
class Attention:
    """Entropy, distance, prefix tokens, mutual information and sinks of every attention head."""

    result: ClassVar[type[Result]] = AttentionResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "How widely and how far does attention look, and at which tokens?"
    reading: ClassVar[str] = (
        "Entropy is 0 if a query looks at one key, and log(keys) if it looks at all equally. "
        "Distance is in pixels of the image: heads that look near act like convolutions. If the "
        "normalised mutual information is near 0, all queries look at the same place, whatever "
        "their own position; at 1, each looks at a place of its own. A sink strength far above 1 "
        "means that one key receives much more weight than most; if the share of prefix tokens is "
        "large as well, it is the class token or a register."
    )

    maps: int = setting(
        2, "Number of images whose attention maps are kept; 0 for none.", at_least=0
    )
    ranks: int = setting(
        0, "Number of images whose stable ranks are measured, which is slow; 0 for none.",
        at_least=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self, "attention")

    @property
    def needs(self) -> Needs:
        """Images, with or without labels; a head may attend too, so all units are visited."""
        return Needs(maps=False, taps=frozenset({"softmax"}))

    def watch(self, sight: Sight) -> dict[str, Tensor] | None:
        """Each image's statistics (N, 6, heads), and the ranks and maps of the first images."""
        import torch

        from retinoscope.numerics.attention import stable_rank
        from retinoscope.numerics.pictures import thumbnails

        weights = sight.tap("softmax")
        if not weights:
            return None
        found = [_measured(w, reach) for w, reach in zip(weights, sight.reaches, strict=True)]
        kept = {"heads": torch.cat([part for part, _ in found], 2)}
        kept["why"] = torch.cat([why for _, why in found], 1)
        ranked, shown = (
            [row for row, index in enumerate(sight.indices) if index < count]
            for count in (self.ranks, self.maps)
        )
        kept["rank"] = torch.cat([stable_rank(w[ranked])[:, None] for w in weights], 2)
        if maps := _maps([w[shown] for w in weights], sight.reaches):
            kept["maps"] = torch.cat(maps, 1)
            kept["pictures"] = thumbnails(sight.images[shown]).to(torch.float16)
        return kept

    def gather(self, group: Group) -> Partial:
        """Means over the images of a group, of every head and over heads."""
        from retinoscope.numerics.running import Mean

        if group.indices and not group.rows:
            raise NotApplicable(
                f"looks at attention weights; {group.anatomy.model} has no attention that the "
                f"graph shows, only: {group.anatomy.summary()}"
            )
        partial: dict[str, Any] = {}
        for name, rows in group.rows.items():
            for what in ("heads", "rank"):
                partial |= Mean.of(rows[what]).to_arrays(f"{name}/{what}")
                partial |= Mean.of(_over_heads(rows[what])).to_arrays(f"{name}/{what}-mean")
            partial[f"{name}/why"] = rows["why"].max(0)
            if len(rows.get("maps", ())):
                partial[f"{name}/maps"] = rows["maps"].astype(np.float32)
                partial["pictures"] = rows["pictures"].astype(np.float16)
                partial["shown"] = np.array([i for i in group.indices if i < self.maps])
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> AttentionResult:
        """Means over all images; maps in the order of the images."""
        from retinoscope.numerics.ragged import padded
        from retinoscope.numerics.running import Mean

        names = [unit.name for unit in measured_in(anatomy, partials)]
        arrays: dict[str, Any] = {}
        for what, statistics in (("rank", ("stable_rank",)), ("heads", STATISTICS)):
            heads, over = (
                [Mean.merge_arrays(partials, f"{name}/{one}") for name in names]
                for one in (what, f"{what}-mean")
            )
            for k, name in enumerate(statistics):
                arrays[name] = np.array([m.value[k] if m.count else np.nan for m in over])
                arrays[f"{name}_error"] = np.array([m.error[k] for m in over])
                arrays[f"head_{name}"] = padded(
                    np.where(m.count, m.value[k], np.nan) for m in heads
                )
            counts, sizes = ([m.count for m in heads], [m.value.shape[1] for m in heads])
        remarks = [(name, _WHY[code]) for name in names for code in _codes(partials, name)]
        if not np.nansum(arrays["prefix_share"]):  # there are none: not a measurement of 0
            for name in ("prefix_share", "prefix_share_error", "head_prefix_share"):
                arrays[name] = np.full(arrays[name].shape, np.nan)
            remarks.append((anatomy.model, "it has no prefix tokens"))
        return AttentionResult(
            coverage=_coverage(anatomy, names),
            images=max(counts, default=0),
            heads=tuple(sizes),
            remarks=tuple(remarks),
            **arrays,
            **_pictures(partials, names),
        )


def _measured(weights: Tensor, reach: Reach) -> tuple[Tensor, Tensor]:
    """The statistics of one attention (N, 6, heads), and why some are missing (N, heads)."""
    import torch

    from retinoscope.numerics.attention import attention_statistics

    queries, keys = (
        None if side is None else torch.as_tensor(side.inside)
        for side in (reach.queries, reach.keys)
    )
    distance = None if reach.distance is None else torch.as_tensor(reach.distance)
    found = torch.stack(attention_statistics(weights, queries, keys, distance, reach.choices), 1)
    classes, unknown = queries is not None and not queries.any(), queries is None or keys is None
    code = 3 if classes else 2 if unknown else 4 if weights.shape[-1] == 1 else 0
    return found, torch.where(found[:, 0].isnan(), 1, code)


def _maps(weights: Sequence[Tensor], reaches: Sequence[Reach]) -> list[Tensor]:
    """The maps of each attention on the first known grid (N, heads, height, width)."""
    import torch

    from retinoscope.numerics.attention import attention_maps

    known = [
        (own, reach, reach.keys)
        for own, reach in zip(weights, reaches, strict=True)
        if reach.keys is not None and reach.keys.cells is not None
    ]
    shown = []
    for own, reach, keys in known:
        outside = [] if reach.queries is None else np.flatnonzero(~reach.queries.inside).tolist()
        if keys.grid == known[0][2].grid and keys.cells is not None:
            query = outside[0] if outside else None
            cells = torch.as_tensor(keys.cells, device=own.device)
            shown.append(attention_maps(own, cells, keys.grid, query))
    return shown


def _over_heads(rows: np.ndarray) -> np.ndarray:
    """The mean over heads for which there is a value."""
    known = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        return np.where(known, rows, 0).sum(-1) / known.sum(-1)


def _codes(partials: Sequence[Partial], name: str) -> list[int]:
    """The reasons why some values of a unit are missing."""
    codes = [part[f"{name}/why"] for part in partials if f"{name}/why" in part]
    return [int(code) for code in np.unique(codes) if code]


def _coverage(anatomy: Anatomy, names: Sequence[str]) -> Coverage:
    """The coverage, with the reason why each other unit has no attention."""
    every = covered(anatomy, names)
    reasons = {
        Kind.ATTENTION: "its weights are not a softmax that is multiplied with the values",
        Kind.CHANNEL_ATTENTION: "it attends to channels, not to positions",
    }
    kinds = {unit.name: unit.kind for unit in anatomy}
    skipped = [(name, reasons.get(kinds[name], "it has no attention")) for name, _ in every.skipped]
    return replace(every, skipped=tuple(skipped))


def _pictures(partials: Sequence[Partial], names: Sequence[str]) -> dict[str, Any]:
    """All maps in the order of the images and units: means over heads, and those of each head."""
    from retinoscope.numerics.pictures import at_one_size

    parts = [part for part in partials if "shown" in part]
    drawn = [name for name in names if any(f"{name}/maps" in part for part in parts)]
    if not drawn:
        none = {"maps": np.empty((0, 0, 0, 0)), "largest_weight": np.empty((0, 0))}
        return none | {"pictures": np.empty((0, 0, 0, 3)), "captions": (), "head_names": ()}
    shown = np.concatenate([part["shown"] for part in parts])
    order = np.argsort(shown)
    by_unit = [np.concatenate([part[f"{name}/maps"] for part in parts])[order] for name in drawn]
    heads = max(maps.shape[1] for maps in by_unit)
    variants, largest = [], []
    for head in range(heads + 1):
        maps = [_head(own[image], head) for image in range(len(shown)) for own in by_unit]
        peaks = np.array([one.max() for one in maps])
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = [one / peak for one, peak in zip(maps, peaks, strict=True)]
        variants.append(at_one_size(relative))
        largest.append(peaks)
    return {
        "maps": np.stack(variants).astype(np.float16),
        "largest_weight": np.stack(largest).astype(np.float64),
        "captions": tuple(f"{index} · {name}" for index in np.sort(shown) for name in drawn),
        "head_names": ("mean over heads", *(f"head {head}" for head in range(heads))),
        "pictures": np.concatenate([part["pictures"] for part in parts])[order],
    }


def _head(maps: np.ndarray, head: int) -> np.ndarray:
    """Of maps (heads, H, W) the mean for 0, or those of head − 1; NaN if there is no such head."""
    if head == 0:
        return maps.mean(0)
    return maps[head - 1] if head <= len(maps) else np.full(maps.shape[1:], np.nan)
