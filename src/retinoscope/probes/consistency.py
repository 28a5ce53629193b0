"""How far the points of a feature map vary together (Park & Kim, 2022, arXiv:2105.12639).

The covariance of each point of a map with its centre point, over images, averaged over channels.
Neighbouring points are correlated even if the pixels of the images are independent, because their
receptive fields overlap: for one 3 × 3 convolution up to a distance of 2, for five up to 10. That
is why averaging neighbours acts like an ensemble. Next to it, the data uncertainty of the same
paper: the standard deviation over the positions of a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Coverage, covered, measured_in
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import MAX_SEED, check, setting
from retinoscope.core.sight import Group, Sight
from retinoscope.core.wording import number

if TYPE_CHECKING:
    from torch import Tensor

_STILL = "its centre point is the same for all images"
_LARGEST = 256
"""Longest side of the maps of correlations."""


@answer
class ConsistencyResult(Result):
    """``correlation[u, k]``: mean |correlation| of points at distance k with the centre point.

    The distance is the larger of those along rows and columns, in positions of the unit's own map;
    beyond the border it is NaN. ``covariance`` is the signed mean. ``length[u]`` is the distance at
    which the correlation falls below 1/e; if it does not up to the border, ``falls[u]`` is False
    and the length is a lower bound. ``maps`` are the correlations of all points, for the last unit
    of each stage; smaller maps are enlarged by repeating points. ``floor`` is the |correlation|
    that unrelated points have at most on average, because there are finitely many images.

    ``data_uncertainty[u]`` is the standard deviation over positions, averaged over channels and
    images. Its counterpart is model uncertainty: the standard deviation over random passes at each
    position.
    """

    probe: ClassVar[str] = "consistency"
    schema: ClassVar[int] = 1

    images: int
    floor: float
    captions: tuple[str, ...]
    distance: np.ndarray = axes("distance", unit="positions", figure=False)
    correlation: np.ndarray = axes(
        "unit", "distance", unit="|correlation|", x="distance",
        title="Correlation with the centre point, by distance",
    )  # fmt: skip
    covariance: np.ndarray = axes(
        "unit", "distance", unit="covariance", x="distance",
        title="Covariance with the centre point, by distance", figure=False,
    )  # fmt: skip
    length: np.ndarray = axes(
        "unit", unit="positions",
        title="Distance at which the correlation falls below 1/e, by depth",
    )  # fmt: skip
    falls: np.ndarray = axes("unit", unit="whether it falls below 1/e", figure=False)
    maps: np.ndarray = axes(
        "last unit of a stage", "row", "column", unit="correlation with the centre point",
        draw="images", rows="captions", colours="diverging", limits=(-1.0, 1.0),
        title="Correlation of each point with the centre point, at the end of each stage",
    )  # fmt: skip
    data_uncertainty: np.ndarray = axes(
        "unit", unit="standard deviation over positions", error="data_uncertainty_error",
        title="Data uncertainty: standard deviation over positions, by depth",
    )  # fmt: skip
    data_uncertainty_error: np.ndarray = axes("unit", unit="standard error", figure=False)

    def findings(self) -> list[str]:
        """How far points vary together at the start and at the end, and where furthest."""
        most = int(self.length.argmax())
        said = [
            f"points vary together over {self._length(0)} after {self.units[0]} and over "
            f"{self._length(-1)} after {self.units[-1]} (furthest after {self.units[most]}: "
            f"{self._length(most)})"
        ]
        ends = number(self.data_uncertainty[0], 3), number(self.data_uncertainty[-1], 3)
        return [*said, f"the data uncertainty goes from {ends[0]} to {ends[1]}"]

    def _length(self, index: int) -> str:
        least = "" if self.falls[index] else "at least "
        return f"{least}{number(self.length[index], 2)} positions"


@dataclass(frozen=True)
class Consistency:
    """Covariance of the points of feature maps with the centre point, after every unit."""

    result: ClassVar[type[Result]] = ConsistencyResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "How far do neighbouring points of a feature map vary together?"
    reading: ClassVar[str] = (
        "A curve that stays high far from the centre means that a whole region of the map says the "
        "same about an image: averaging over it loses little and removes noise. The length is the "
        "distance at which the correlation falls below 1/e. Distances count positions of the "
        "unit's own map, so they shrink where the map does. With images=noise, the pixels are "
        "independent, and all correlation is made by the network: one 3 × 3 convolution reaches a "
        "distance of 2, five reach 10 (Park & Kim, 2022). Data uncertainty is the spread over the "
        "positions of one map; spatial smoothing lowers it."
    )

    images: Literal["data", "noise"] = setting(
        "data",
        "The images of the data, or white Gaussian noise (mean 0.5, standard deviation 0.25, not "
        "clipped) in place of each.",
    )
    group: int = setting(
        64,
        "Images within which covariances are taken, consecutive in the split; they are then "
        "averaged over groups.",
        at_least=2,
    )
    seed: int = setting(0, "Random seed of the noise.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "consistency")

    @property
    def needs(self) -> Needs:
        """Groups of images, with or without labels."""
        if self.images == "data":
            return Needs(group=self.group)
        from retinoscope.data.views import GaussianImages

        return Needs(view=GaussianImages(seed=self.seed), group=self.group)

    def watch(self, sight: Sight) -> dict[str, Tensor]:
        """Sums of products and squares (H, W) of a group, and each image's deviation (N,)."""
        from retinoscope.numerics.consistency import centre_products
        from retinoscope.numerics.spread import spatial_deviation

        products, squares = centre_products(sight.maps)
        deviation = spatial_deviation(sight.maps)
        return {"products": products, "squares": squares, "deviation": deviation}

    def gather(self, group: Group) -> Partial:
        """The sums of each unit over a group, in single precision to save space."""
        from retinoscope.numerics.running import Mean

        images = len(group.indices)
        partial: dict[str, Any] = {
            "freedom": np.array(images - 1),
            "images": np.array(images if group.number == 0 else 0),
        }
        for unit, rows in group.rows.items():
            partial |= {f"{unit}/{k}": rows[k].astype(np.float32) for k in ("products", "squares")}
            partial |= Mean.of(rows["deviation"]).to_arrays(f"{unit}/deviation")
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> ConsistencyResult:
        """Covariances within groups, averaged over groups."""
        from retinoscope.numerics import consistency
        from retinoscope.numerics.pictures import at_one_size
        from retinoscope.numerics.ragged import padded
        from retinoscope.numerics.running import Mean

        freedom = sum(int(partial["freedom"]) for partial in partials)
        if freedom < 1:
            raise NotApplicable(
                "compares images with each other, so it needs at least 2 in a group that can be "
                "read. Use more (--images, in Python images=…)"
            )
        seen = [unit.name for unit in measured_in(anatomy, partials)]
        sums = {
            name: [_total(partials, f"{name}/{k}") / freedom for k in ("products", "squares")]
            for name in seen
        }
        maps = {name: consistency.correlation_with_centre(*both) for name, both in sums.items()}
        names = [name for name in seen if np.isfinite(maps[name]).all()]
        if not names:
            raise NotApplicable(f"needs points that vary over images; in every unit, {_STILL}")
        curves = [consistency.by_distance(np.abs(maps[name])) for name in names]
        lengths = [consistency.correlation_length(curve) for curve in curves]
        deviation = [Mean.merge_arrays(partials, f"{name}/deviation") for name in names]
        last = _last_of_stages(anatomy, names)
        return ConsistencyResult(
            coverage=_covered(anatomy, names, seen),
            images=sum(int(partial["images"]) for partial in partials),
            floor=float(np.sqrt(2 / (np.pi * freedom))),
            captions=tuple(last),
            distance=np.arange(max(map(len, curves)), dtype=float),
            correlation=padded(curves),
            covariance=padded(consistency.by_distance(sums[name][0]) for name in names),
            length=np.array([length for length, _ in lengths]),
            falls=np.array([falls for _, falls in lengths]),
            maps=at_one_size([maps[name] for name in last], side=_LARGEST),
            data_uncertainty=np.array([mean.value for mean in deviation]),
            data_uncertainty_error=np.array([mean.error for mean in deviation]),
        )


def _total(partials: Sequence[Partial], key: str) -> np.ndarray:
    return np.asarray(np.sum([partial[key] for partial in partials], 0, np.float64))


def _last_of_stages(anatomy: Anatomy, names: Sequence[str]) -> list[str]:
    """The last of the named units of each stage; the last unit of all if there are no stages."""
    stages = {unit.stage: unit.name for unit in anatomy if unit.name in names}
    return [name for stage, name in stages.items() if stage is not None] or [names[-1]]


def _covered(anatomy: Anatomy, names: Sequence[str], seen: Sequence[str]) -> Coverage:
    """The coverage; units whose centre does not vary are skipped with that reason."""
    found = covered(anatomy, names)
    still = {name for name in seen if name not in names}
    skipped = tuple((name, _STILL if name in still else why) for name, why in found.skipped)
    return replace(found, skipped=skipped)
