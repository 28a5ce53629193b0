"""What a network loses without each of its units (Park & Kim, 2022, arXiv:2202.06709, fig. 10b).

Each residual unit is removed at test time, so that only its skip connection remains, and accuracy
and negative log-likelihood are measured again (Veit et al., 2016, arXiv:1605.06431). The paper
removes a 3×3 convolution of a ResNet block, and an MSA or MLP of a transformer. Single heads
(Michel et al., 2019, arXiv:1905.10650) and prefix tokens are replaced instead of removed, and what
replaces them matters (arXiv:2604.14433). Next to the damage stands the block influence, a cheap
predictor of it (Men et al., 2024, arXiv:2403.03853).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from retinoscope.core import wording
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.context import Context
from retinoscope.core.coverage import Coverage
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial, Piece
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import MAX_SEED, check, refuse, setting

if TYPE_CHECKING:
    from torch import Tensor

    from retinoscope.anatomy.lesions import Lesion as Part
    from retinoscope.anatomy.replay import Replay
    from retinoscope.core.subject import Subject

GROUP = 64
"""Images per piece; they replace each other's values."""
_FEWEST = 2
"""Minimum number of images for an interval."""


class _Words(NamedTuple):
    one: str
    """One of what is removed."""
    needed: str
    """What the network must have."""
    reason: str
    """Why a unit has none."""


_NOT_RESIDUAL = "has no skip connection that could replace its output"
_WORDS = {
    "units": _Words("unit", "residual units", _NOT_RESIDUAL),
    "stages": _Words("stage", "residual units", _NOT_RESIDUAL),
    "pairs": _Words("pair", "at least two residual units", _NOT_RESIDUAL),
    "convolutions": _Words(
        "convolution", "a spatial convolution in a block, with input and output of the same shape",
        "has no spatial convolution in a block with input and output of the same shape",
    ),
    "heads": _Words(
        "head", "an attention whose heads the graph shows: weights by softmax, by head",
        "has no attention whose heads the graph shows",
    ),
    "prefix": _Words(
        "token", "prefix tokens, such as a class token", "its state has no prefix tokens"
    ),
}  # fmt: skip
_REPLACED = ("heads", "prefix")
_IN_STAGES = ("units", "convolutions")
"""Lesions that are compared within a stage."""
_BY = {"zero": "zeros", "mean": f"its mean over {GROUP} images", "shuffle": "that of another image"}
_STORED = ("prediction", "lesion_prediction", "kl", "influence", "label", "nll", "nll_change")
_PAPER = {"conv": "first", "mlp": "first", "attention": "last"}
"""Which unit of a stage Park & Kim (2022) find to matter most, by kind."""


@answer
class LesionResult(Result):
    """The rows are lesions: units, or what ``remove`` names. Changes are lesioned minus intact.

    ``changed`` is the fraction of images whose predicted class changes, ``kl`` the divergence from
    the intact output to the lesioned one, ``influence`` 1 − cos between the input and the output of
    a unit, mean over positions, prefix tokens and images (only of single units). Means over images
    come with their bootstrap standard errors, and with intervals that contain 95 % of the
    resamples; all lesions share the resamples, so their differences are paired. Without labels,
    changes of accuracy and NLL are NaN. ``stage_ends`` are the means of ``accuracy_change`` over
    the first and over the last lesions of a kind in all stages that have several.
    """

    probe: ClassVar[str] = "lesion"
    schema: ClassVar[int] = 1

    images: int
    remove: str
    replacement: str
    """What stands in the place of heads and tokens; empty for what is removed."""
    unlabelled: str
    """Why there are no labels; empty if there are."""
    accuracy: float | None
    """With nothing removed, like ``nll``; None without labels."""
    nll: float | None
    not_finite: tuple[str, ...]
    """Lesions without which some outputs are NaN or infinite; they have no NLL and no KL."""
    correlation: float | None
    """Spearman's, of block influence with the change of NLL (without labels, KL) over units."""
    correlation_interval: tuple[float, float] | None
    attentions: tuple[str, ...]
    """The rows of ``head_kl``."""
    ends: tuple[str, ...]
    """The rows of ``stage_ends``: for each kind, the first and the last of a stage."""
    end_kinds: tuple[str, ...]
    """The rows of ``end_difference``."""
    end_stages: tuple[int, ...]
    """The number of stages with several units of each of these kinds."""
    accuracy_change: np.ndarray = axes(
        "unit", unit="change in accuracy", error="accuracy_change_error", changes="the accuracy",
        title="Change in accuracy by each lesion, by depth",
    )  # fmt: skip
    accuracy_change_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    accuracy_change_interval: np.ndarray = axes("unit", "end", unit="95 % interval", figure=False)
    nll_change: np.ndarray = axes(
        "unit", unit="change of NLL (nats)", error="nll_change_error", changes="the NLL",
        title="Change of the negative log-likelihood by each lesion, by depth",
    )  # fmt: skip
    nll_change_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    nll_change_interval: np.ndarray = axes("unit", "end", unit="95 % interval", figure=False)
    changed: np.ndarray = axes(
        "unit", unit="fraction of images", error="changed_error", figure=False,
        title="Predictions that each lesion changes, by depth",
    )  # fmt: skip
    changed_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    changed_interval: np.ndarray = axes("unit", "end", unit="95 % interval", figure=False)
    kl: np.ndarray = axes(
        "unit", unit="KL divergence (nats)", error="kl_error",
        title="Divergence of the output by each lesion, by depth",
    )  # fmt: skip
    kl_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    kl_interval: np.ndarray = axes("unit", "end", unit="95 % interval", figure=False)
    influence: np.ndarray = axes(
        "unit", unit="block influence, 1 − cos", error="influence_error",
        title="How much each unit changes the direction of its input, by depth",
    )  # fmt: skip
    influence_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    influence_interval: np.ndarray = axes("unit", "end", unit="95 % interval", figure=False)
    head_kl: np.ndarray = axes(
        "attention", "head", unit="KL divergence (nats)", rows="attentions", draw="matrix",
        title="Divergence of the output without each head",
    )  # fmt: skip
    stage_ends: np.ndarray = axes(
        "end", unit="change in accuracy", rows="ends", error="stage_ends_error",
        title="The first against the last unit of a stage",
    )  # fmt: skip
    stage_ends_error: np.ndarray = axes("end", unit="standard error", figure=False)
    stage_ends_kl: np.ndarray = axes("end", unit="KL divergence (nats)", rows="ends",
                                     title="The same in KL divergence", figure=False)  # fmt: skip
    end_difference: np.ndarray = axes("kind", unit="first − last, change in accuracy (without "
                                      "labels, −KL)", rows="end_kinds", figure=False)  # fmt: skip
    end_difference_interval: np.ndarray = axes("kind", "end", unit="95 % interval", figure=False)

    def findings(self) -> list[str]:
        """The worst lesion, lesions without effect, first against last units, block influence."""
        said = [*self._worst(), *self._first_and_last()]
        if self.correlation is not None:
            damage = "KL divergence" if self.unlabelled else "change of NLL"
            said.append(
                f"block influence and {damage} rank the units with a Spearman correlation of "
                f"{wording.number(self.correlation, 3)}"
                f"{wording.interval(self.correlation_interval, _three)}"
            )
        if self.not_finite:
            said.append(
                f"some outputs without {wording.listed(self.not_finite)} are not finite, so that "
                "they have no NLL and no KL divergence"
            )
        if self.unlabelled:
            said.append(f"accuracy and NLL were not measured: {self.unlabelled}")
        return said

    def _worst(self) -> list[str]:
        by = f" (replaced by {_BY[self.replacement]})" if self.replacement else ""
        if self.unlabelled:
            worst = int(self.changed.argmax())
            ends = wording.interval(self.changed_interval[worst].tolist(), wording.percent)
            return [
                f"most predictions change without {self.units[worst]}{by}: "
                f"{wording.percent(self.changed[worst])}{ends}"
            ]
        falls, ends = 0 - self.accuracy_change, 0 - self.accuracy_change_interval[:, ::-1]
        worst, whole = int(falls.argmax()), wording.count(len(falls), _WORDS[self.remove].one)
        harmful = int((ends[:, 0] > 0).sum())
        assert self.accuracy is not None  # there are labels
        return [
            f"accuracy falls most without {self.units[worst]}{by}: from "
            f"{wording.percent(self.accuracy)} by {_points(falls[worst])} points"
            f"{wording.interval(ends[worst].tolist(), _points)}"
            if falls[worst] > 0
            else f"accuracy does not fall without any of {whole}{by}",
            f"accuracy falls measurably (by its 95 % interval) without {harmful} of {whole}",
        ]

    def _first_and_last(self) -> list[str]:
        """Whether the first or the last unit of a stage matters more, for each kind."""
        if not self.end_kinds:
            several = self.remove in _IN_STAGES and len(self.units) > 1
            return ["no stage has several lesions of one kind to compare"] * several
        single = len({s for s in self.stages if s is not None}) == 1
        measure = "nats of KL divergence" if self.unlabelled else "points of accuracy"
        # Costs are positive, changes of accuracy negative.
        costs = self.stage_ends_kl if self.unlabelled else 0 - 100 * self.stage_ends
        scale = 1 if self.unlabelled else 100
        said = []
        for k, kind in enumerate(self.end_kinds):
            apart = 0 - scale * self.end_difference[k]
            low, high = (0 - scale * self.end_difference_interval[k, ::-1]).tolist()
            more = "first" if low > 0 else "last" if high < 0 else ""
            # The paper removes convolutions of ResNets, and whole units of transformers.
            like = not single and (kind == "conv") == (self.remove == "convolutions")
            claim = _PAPER.get(kind, "") if like else ""
            one = _WORDS[self.remove].one
            called = one if self.remove == "convolutions" else f"{kind.replace('_', ' ')} {one}"
            where = "its only stage" if single else "a stage"
            over = "" if single else f"mean over {wording.count(self.end_stages[k], 'stage')}; "
            said.append(
                f"the first {called} of {where} costs "
                f"{wording.number(costs[2 * k], 3)} {measure}, the last "
                f"{wording.number(costs[2 * k + 1], 3)} ({over}difference "
                f"{wording.number(apart, 3)}{wording.interval((low, high), _three)})"
                + f", in contrast to Park & Kim (2022), who find that the {claim} costs more"
                * bool(more and claim and more != claim)
            )
        return said


@dataclass(frozen=True)
class Lesion:
    """Accuracy and NLL without each unit, exactly removed at test time."""

    result: ClassVar[type[Result]] = LesionResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Which units does the network depend on?"
    reading: ClassVar[str] = (
        "Each point is the network without one residual unit: its skip connection remains. The "
        "further accuracy falls, the more the later units depend on it. The shading is the "
        "uncertainty from the choice of images. Park & Kim (2022) find that the damage repeats "
        "with the stages, that early stages matter more, and that the first convolution or MLP "
        "of a stage and its last attention matter most. KL divergence needs no labels: it shows "
        "how far the output moves, even if the prediction stays. Block influence needs no lesion: "
        "a unit that hardly changes the direction of its input is expected to be dispensable. If "
        "the correlation is low, it is not a substitute for the lesions."
    )

    remove: Literal["units", "stages", "pairs", "convolutions", "heads", "prefix"] = setting(
        "units",
        "Remove residual units, all of a stage, pairs, or convolutions that keep the shape (the "
        "paper's lesion of ResNets); or replace attention heads, or prefix tokens after each unit.",
    )
    replacement: Literal["zero", "mean", "shuffle"] = setting(
        "zero",
        "What replaces a head's output or a token: zeros, the mean of the same position over a "
        "group of 64 images, or the values of another image of the group.",
    )
    units: str = setting(
        "", "Only these units, written NAME+NAME. Default: all. Not for stages and pairs."
    )
    resamples: int = setting(1000, "Bootstrap samples of images for the intervals.", at_least=100)
    seed: int = setting(
        0, "Random seed of the bootstrap and of shuffle.", at_least=0, at_most=MAX_SEED
    )

    def __post_init__(self) -> None:
        check(self, "lesion")
        refuse(
            "lesion",
            (f"replacement={self.replacement} needs remove=heads or remove=prefix; units and "
             "convolutions are removed, not replaced",
             self.replacement == "zero" or self.remove in _REPLACED),
            (f"units=… cannot be combined with remove={self.remove}, which takes all units",
             not self.units or self.remove not in ("stages", "pairs")),
        )  # fmt: skip

    @property
    def needs(self) -> Needs:
        """Test images; labels are used if there are any."""
        return Needs(labels="optional")

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """Groups of consecutive images; a single one at the end joins the group before."""
        total = len(subject.split(self.needs))
        if total < _FEWEST:
            raise NotApplicable(
                f"needs at least {_FEWEST} images, of classes that the model knows if they have "
                f"labels; there {'is' if total == 1 else 'are'} {total}"
            )
        starts = [start for start in range(0, total, GROUP) if total - start >= _FEWEST]
        stops = [*starts[1:], total]
        return [
            Piece(f"{start:07d}", {"start": start, "stop": stop})
            for start, stop in zip(starts, stops, strict=True)
        ]

    def seconds(self, subject: Subject, context: Context) -> float:
        """The estimate from forward passes, and the FLOPs of the units after each lesion."""
        from retinoscope.geometry.lesioned import compare_lesions
        from retinoscope.numerics.timing import seconds_each

        split = subject.split(self.needs)
        flops = np.array([unit.flops for unit in subject.anatomy], dtype=float)
        behind = 1 - np.cumsum(flops) / max(1.0, flops.sum())
        passes = 1 + sum(behind[lesion.start] for lesion in self.lesions(subject.replay))

        def forward(count: int) -> None:
            batches = split.batches(range(count), subject.batch)
            if some := [batch for batch in batches if len(batch.images)]:
                compare_lesions(subject, some, lambda replay: [], say=context.say)

        forward(min(len(split), 4))  # the first pass of a network is slower than the others
        each = seconds_each(forward, len(split), subject.batch)
        return each * passes * len(split) / len(self.pieces(subject))

    def lesions(self, replay: Replay) -> Sequence[Part]:
        """The lesions of a network, in order of depth."""
        from retinoscope.anatomy.lesions import FINDERS

        chosen = [name for name in self.units.split("+") if name]
        found = FINDERS[self.remove](replay, *([chosen] if chosen else []))
        if not found:
            where = f"{' + '.join(chosen)} of " if chosen else ""
            raise NotApplicable(
                f"needs {_WORDS[self.remove].needed}; {where}{replay.anatomy.model} has none"
            )
        return found

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Each image's outputs without each lesion, compared with the intact ones."""
        from retinoscope.geometry.lesioned import compare_lesions

        split, (start, stop) = subject.split(self.needs), (piece.what["start"], piece.what["stop"])
        read = split.batches(range(start, stop), subject.batch, subject.workers)
        batches = [batch for batch in read if len(batch.images)]
        images, lesions = sum(len(b.images) for b in batches), self.lesions(subject.replay)
        grouped = self.replacement != "zero"
        if images < (_FEWEST if grouped else 1):
            context.say(f"too few images from {start} to {stop - 1} could be read; none is used")
            return {}
        replacing = partial(_replaced, self.replacement, (self.seed, start))
        return {
            **compare_lesions(subject, batches, self.lesions, replacing, grouped, context.say),
            "names": np.array([lesion.name for lesion in lesions], dtype=np.str_),
            "owners": np.array(["+".join(u.name for u in one.units) for one in lesions]),
            "unlabelled": np.array(split.unlabelled_because, dtype=np.str_),
        }

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> LesionResult:
        """Means over all images, with bootstrap intervals; independent of the partials' order."""
        from retinoscope.core.coverage import stage_ends
        from retinoscope.numerics.damage import by_end, by_head, damages, rank_correlation
        from retinoscope.numerics.ragged import padded

        there = sorted((p for p in partials if "index" in p), key=lambda p: int(p["index"][0]))
        images = sum(len(p["index"]) for p in there)
        if images < _FEWEST:
            raise NotApplicable(f"needs at least {_FEWEST} images that can be read; got {images}")
        names, owners, unlabelled = (there[0][key] for key in ("names", "owners", "unlabelled"))
        whole = {key: np.concatenate([p[key] for p in there]) for key in there[0] if key in _STORED}
        each = damages(whole, self.resamples, self.seed)
        coverage = self._coverage(anatomy, names.tolist(), owners.tolist())
        ends = stage_ends(coverage.kinds, coverage.stages) if self.remove in _IN_STAGES else {}
        worse = "nll_change" if "label" in whole else "kl"
        correlation, interval = rank_correlation(each[worse], each["influence"])
        heads = by_head(names.tolist(), each["kl"].values) if self.remove == "heads" else {}
        arrays: dict[str, Any] = {name: one.values for name, one in each.items()}
        arrays |= {f"{name}_error": one.error for name, one in each.items()}
        arrays |= {f"{name}_interval": one.interval for name, one in each.items()}
        right = whole["prediction"] == whole["label"] if "label" in whole else None
        return LesionResult(
            coverage=coverage,
            images=images,
            remove=self.remove,
            replacement=self.replacement if self.remove in _REPLACED else "",
            unlabelled=str(unlabelled),
            accuracy=None if right is None else float(right.mean()),
            nll=None if right is None else float(whole["nll"].mean()),
            not_finite=tuple(names[np.isnan(each["kl"].values)].tolist()),
            correlation=correlation,
            correlation_interval=interval,
            attentions=tuple(heads),
            head_kl=padded(heads.values()),
            ends=tuple(f"{kind}, {end}" for kind in ends for end in ("first", "last")),
            end_kinds=tuple(ends),
            end_stages=tuple(map(len, ends.values())),
            **by_end(list(ends.values()), each),
            **arrays,
        )

    def _coverage(self, anatomy: Anatomy, names: list[str], owners: list[str]) -> Coverage:
        """The lesions as rows, and the units without any."""
        of = [[anatomy[name] for name in owner.split("+")] for owner in owners]
        kinds = [{str(unit.kind) for unit in units} for units in of]
        stages = [{unit.stage for unit in units} for units in of]
        held = {unit.name for units in of for unit in units}
        reason = "not chosen" if self.units else _WORDS[self.remove].reason
        return Coverage(
            units=tuple(names),
            kinds=tuple(kind.pop() if len(kind) == 1 else "several" for kind in kinds),
            stages=tuple(stage.pop() if len(stage) == 1 else None for stage in stages),
            subsamples=(False,) * len(names),
            skipped=tuple(
                (unit.name, reason)
                for unit in anatomy
                if held.isdisjoint(one.name for one in Anatomy("", (unit,)).walk())
            ),
        )


def _replaced(how: str, seed: tuple[int, int], values: Tensor) -> Tensor:
    """What replaces the same part of the values of a group of images (N, …)."""
    from retinoscope.numerics.derangement import derangement

    if how == "mean":
        return values.mean(0, keepdim=True)
    return values[derangement(len(values), seed)] if how == "shuffle" else values.new_zeros(1)


def _points(share: float) -> str:
    """A fraction in percentage points."""
    return wording.number(100 * share, 3)


def _three(value: float) -> str:
    return wording.number(value, 3)
