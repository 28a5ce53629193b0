"""How similar units represent the same images (Park & Kim, 2022, arXiv:2202.06709, fig. 10a).

CKA over mini-batches (Nguyen et al., 2021, arXiv:2010.15327) compares every unit with every unit,
of the same network or of another one, whatever their widths: 1 if the features of one are a
rotated and scaled copy of the other's, about 0 if they are unrelated. Beside it stand the share of
common nearest neighbours (Huh et al., 2024, arXiv:2405.07987) and the rank correlation of
dissimilarities (RSA; Kriegeskorte et al., 2008). CKA grows with the width of unrelated features
too; ``permutations`` measures how far, and gives the score above that level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from retinoscope.core import wording
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Coverage, covered
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import MAX_SEED, check, setting
from retinoscope.core.sight import Group, Sight
from retinoscope.core.unit import Kind, Unit

if TYPE_CHECKING:
    from torch import Tensor

FEWEST = 4
"""Images in the smallest group for which the unbiased HSIC is defined."""
_QUANTILE = 0.95
_LIMITS = (0.0, 1.0)


@answer
class SimilarityResult(Result):
    """``cka[u, v]`` of unit u with unit v of the other network, or of the same one.

    ``neighbours`` and ``rsa`` compare the same units. ``calibrated`` is CKA above the level that
    CKA reaches if the images of one side are permuted, rescaled so that equal features have 1; it
    is empty without ``permutations``, like ``level``, the 95 % quantile over permutations.
    ``contrast`` is the mean CKA of different units in the same stage minus that of units in
    different stages; None if there is only one stage, or another network.
    """

    probe: ClassVar[str] = "similarity"
    schema: ClassVar[int] = 1

    images: int
    groups: int
    """Number of mini-batches."""
    other: str
    """The other network; empty if the network is compared with itself."""
    labels: tuple[str, ...]
    """Names of the rows: units, with E for the stem and P for units that subsample or pool."""
    other_labels: tuple[str, ...]
    other_stages: tuple[int | None, ...]
    contrast: float | None
    contrast_interval: tuple[float, float] | None
    """95 %, by the jackknife over groups; None if there is only one group."""
    skipped_others: tuple[tuple[str, str], ...] = ()
    """Units of the other network that were not compared, with the reason."""
    cka: np.ndarray = axes(
        "unit", "unit of the other network", unit="CKA", draw="matrix", limits=_LIMITS,
        title="CKA of every unit with every unit", rows="labels", points="other_labels",
        column_groups="other_stages",
    )  # fmt: skip
    calibrated: np.ndarray = axes(
        "unit", "unit of the other network", unit="calibrated CKA", draw="matrix", limits=_LIMITS,
        title="CKA above the level of permuted images", rows="labels", points="other_labels",
        column_groups="other_stages",
    )  # fmt: skip
    level: np.ndarray = axes(
        "unit", "unit of the other network", unit="CKA of permuted images", draw="matrix",
        figure=False, rows="labels", points="other_labels", column_groups="other_stages",
    )  # fmt: skip
    neighbours: np.ndarray = axes(
        "unit", "unit of the other network", unit="share of common neighbours", draw="matrix",
        title="Share of each image's nearest neighbours that both units agree on", limits=_LIMITS,
        rows="labels", points="other_labels", column_groups="other_stages", figure=False,
    )  # fmt: skip
    rsa: np.ndarray = axes(
        "unit", "unit of the other network", unit="rank correlation", draw="matrix", figure=False,
        title="Rank correlation of dissimilarities between images", limits=_LIMITS,
        rows="labels", points="other_labels", column_groups="other_stages",
    )  # fmt: skip

    def findings(self) -> list[str]:
        """Block structure within a network; the most similar pair of depths between two."""
        if self.other:
            return [self._depths()]
        if self.contrast is None:
            return ["there are no pairs of units within and between stages to compare"]
        ends = self.contrast_interval or ()
        interval = f" [{', '.join(wording.number(end, 2) for end in ends)}]" if ends else ""
        blocks = ", so stages show as blocks" if ends and ends[0] > 0 else ""
        return [
            f"the CKA of units in the same stage is {wording.number(self.contrast, 2)}{interval} "
            f"above that of units in different stages{blocks}"
        ]

    def _depths(self) -> str:
        last = self.cka[-1]
        best = int(np.nanargmax(last))
        return (
            f"its last unit is most similar to {self.other_labels[best]} of {self.other} (CKA "
            f"{wording.number(float(last[best]), 2)}), unit {best + 1} of {len(last)}"
        )


@dataclass(frozen=True)
class Similarity:
    """CKA of every unit with every unit, of the same network or of another."""

    result: ClassVar[type[Result]] = SimilarityResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Which units represent the images alike?"
    reading: ClassVar[str] = (
        "Each cell compares two units: 1 (bright) if they represent the images alike, up to "
        "rotation and scale, 0 (dark) if they have nothing in common. Lines separate stages; E "
        "marks the stem and P units that subsample or pool. Bright squares along the diagonal are "
        "blocks: Park & Kim (2022) find them in ResNets, PiT and Swin, while a ViT is uniform. "
        "Raw CKA grows with the number of features; the calibrated score subtracts what permuted "
        "images reach."
    )

    other: str = setting("", "Compare with another model: its name. Default: the model itself.")
    kernel: Literal["linear", "rbf"] = setting("linear", "Kernel: linear, or a Gaussian (rbf).")
    width: float = setting(
        0.5, "Width of the Gaussian, as a multiple of the median distance.", above=0
    )
    neighbours: int = setting(10, "Number of nearest neighbours to compare.", at_least=1)
    permutations: int = setting(
        0, "Permutations of the images that calibrate CKA, such as 200; 0 for none.", at_least=0
    )
    group: int = setting(64, "Images per mini-batch.", at_least=FEWEST)
    seed: int = setting(0, "Random seed for permutations.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "similarity")

    @property
    def needs(self) -> Needs:
        """Images with or without labels, in fixed groups; the other network on the same images."""
        others = (self.other,) if self.other else ()
        return Needs(maps=False, group=self.group, others=others)

    def watch(self, sight: Sight) -> Tensor | None:
        """The Gram matrix of the group; None for the logits."""
        from retinoscope.numerics.gram import bordered_gram

        return None if sight.unit.kind is Kind.HEAD else bordered_gram(sight.features)

    def gather(self, group: Group) -> Partial:
        """HSIC, common neighbours and rank correlations of a group."""
        from retinoscope.numerics import similarity as numbers
        from retinoscope.numerics.gram import Grams
        from retinoscope.numerics.ranks import rank_correlations

        if len(group.indices) < FEWEST:
            return {"small": np.array(len(group.indices))}
        theirs = group.others[self.other] if self.other else group
        sides = [Grams.of(np.stack(list(side.rows.values()))) for side in (group, theirs)]
        width = self.width if self.kernel == "rbf" else None
        mine, others = (numbers.u_centred(side.kernel(width)) for side in sides)
        found: dict[str, Any] = {
            "hsic": numbers.hsic(mine, others),
            "own": np.where(sides[0].constant, 0, numbers.own_hsic(mine)),
            "theirs": np.where(sides[1].constant, 0, numbers.own_hsic(others)),
            "rsa": rank_correlations(*(side.dissimilarities() for side in sides)),
            "images": np.array(len(group.indices)),
            "first": np.array(group.indices[0]),
        }
        if len(group.indices) > self.neighbours:
            near, also = (side.neighbours(self.neighbours) for side in sides)
            found["neighbours"] = numbers.shared_neighbours(near, also, self.neighbours)
        if self.permutations:
            orders = _orders(self.seed, group.indices, self.permutations)
            found["null"] = numbers.permuted_hsic(mine, others, orders).astype(np.float32)
        if self.other:
            found |= _described(theirs)
        return found | {"units": _names(group.rows)}

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> SimilarityResult:
        """Means over groups, independent of their order."""
        from retinoscope.numerics import similarity as numbers

        there = sorted((p for p in partials if "hsic" in p), key=lambda p: int(p["first"]))
        if not there:
            raise NotApplicable(
                f"needs at least {FEWEST} images in a group; there are "
                f"{sum(int(p['small']) for p in partials if 'small' in p)}. Use more images"
            )
        own, theirs = (np.mean([p[key] for p in there], axis=0) for key in ("own", "theirs"))
        mine, others = own > 0, theirs > 0
        _refuse_constant(mine, others)
        kept = np.ix_(mine, others)

        def mean(key: str) -> np.ndarray:
            arrays = [p[key][kept] for p in there if key in p]
            return np.mean(arrays, axis=0) if arrays else np.empty((0, 0))

        cka = numbers.cka(mean("hsic"), own[mine], theirs[others])
        level = calibrated = np.empty((0, 0))
        if self.permutations:
            null = np.mean([p["null"][:, mine][:, :, others] for p in there], axis=0, dtype=float)
            scores = null / np.sqrt(np.outer(own[mine], theirs[others]))
            level = np.quantile(scores, _QUANTILE, axis=0)
            calibrated = numbers.calibrated(cka, level)
        names = [str(name) for name in there[0]["units"]]
        coverage, labels = _rows(anatomy, names, mine)
        columns = _Columns.of(there[0], others) if self.other else _Columns.same(coverage, labels)
        contrast, interval = self._contrast(there, mine, coverage)
        return SimilarityResult(
            coverage=coverage,
            images=sum(int(p["images"]) for p in there),
            groups=len(there),
            other=self.other,
            labels=labels,
            other_labels=columns.labels,
            other_stages=columns.stages,
            skipped_others=columns.skipped,
            contrast=contrast,
            contrast_interval=interval,
            cka=cka,
            calibrated=calibrated,
            level=level,
            neighbours=mean("neighbours"),
            rsa=mean("rsa"),
        )

    def _contrast(
        self, there: Sequence[Partial], mine: np.ndarray, coverage: Coverage
    ) -> tuple[float | None, tuple[float, float] | None]:
        """CKA within stages minus CKA between stages, with its interval over groups."""
        from retinoscope.numerics.contrast import block_contrast, jackknife_interval
        from retinoscope.numerics.similarity import cka

        if self.other:
            return None, None
        both = np.stack([p["hsic"][np.ix_(mine, mine)] for p in there])
        own = np.stack([p["own"][mine] for p in there])

        def contrast(chosen: np.ndarray) -> float | None:
            mean = own[chosen].mean(0)
            if not mean.all():  # without one group, a unit may be constant
                return None
            return block_contrast(cka(both[chosen].mean(0), mean, mean), coverage.stages)

        return jackknife_interval(contrast, len(there))


@dataclass(frozen=True)
class _Columns:
    """The units of the other side."""

    labels: tuple[str, ...]
    stages: tuple[int | None, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @classmethod
    def same(cls, coverage: Coverage, labels: tuple[str, ...]) -> _Columns:
        return cls(labels, coverage.stages)

    @classmethod
    def of(cls, partial: Partial, measured: np.ndarray) -> _Columns:
        names = [str(name) for name in partial["other_units"]]
        marks = [str(mark) for mark in partial["other_marks"]]
        stages = [None if stage < 0 else int(stage) for stage in partial["other_stages"]]
        kept = [i for i, is_measured in enumerate(measured) if is_measured]
        return cls(
            tuple(f"{marks[i]} {names[i]}".strip() for i in kept),
            tuple(stages[i] for i in kept),
            tuple((names[i], _CONSTANT) for i in range(len(names)) if i not in kept),
        )


_CONSTANT = "its features are the same for all images of each group"


def _refuse_constant(mine: np.ndarray, theirs: np.ndarray) -> None:
    for side, whose in ((mine, "the network"), (theirs, "the other network")):
        if not side.any():
            raise NotApplicable(
                f"compares features of different images, but all units of {whose} have the same "
                "features for all images of each group. Are the images different, and the weights "
                "undamaged?"
            )


def _rows(
    anatomy: Anatomy, names: Sequence[str], measured: np.ndarray
) -> tuple[Coverage, tuple[str, ...]]:
    """The compared units and their labels; the others with the reason."""
    kept = {name for name, is_measured in zip(names, measured, strict=True) if is_measured}
    found = covered(anatomy, kept, _CONSTANT)
    heads = {unit.name for unit in anatomy if unit.kind is Kind.HEAD}
    skipped = tuple((n, "its state is the logits" if n in heads else r) for n, r in found.skipped)
    coverage = Coverage(found.units, found.kinds, found.stages, found.subsamples, skipped)
    return coverage, tuple(f"{_mark(u)} {u.name}".strip() for u in anatomy if u.name in kept)


def _mark(unit: Unit) -> str:
    if unit.kind is Kind.STEM:
        return "E"
    return "P" if unit.subsamples or unit.kind is Kind.POOL else ""


def _described(group: Group) -> dict[str, np.ndarray]:
    """The compared units of the other network, which ``combine`` does not know."""
    units = [unit for unit in group.anatomy if unit.name in group.rows]
    return {
        "other_units": np.array([unit.name for unit in units]),
        "other_marks": np.array([_mark(unit) for unit in units]),
        "other_stages": np.array([-1 if unit.stage is None else unit.stage for unit in units]),
    }


def _names(rows: Any) -> np.ndarray:
    return np.array(list(rows))


def _orders(seed: int, indices: Sequence[int], count: int) -> np.ndarray:
    """Permutations of the images of a group, from the seed and its first image alone."""
    random = np.random.default_rng([seed, indices[0]])
    return random.permuted(np.tile(np.arange(len(indices)), (count, 1)), axis=1)
