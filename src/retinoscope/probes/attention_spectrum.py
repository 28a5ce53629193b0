"""Which eigenvalue dominates each attention layer (Dovonon et al., 2024, arXiv:2401.04301).

An attention head adds A X H to its input X, with its weights A (rows that sum to 1) and
H = W_V W_proj. As a linear map, X + A X H has the eigenvalues 1 + λ_H λ_A. If the one of the
largest modulus belongs to λ_A = 1, whose eigenvector is the same for all tokens, repeating the
layer makes tokens alike: it smooths. Next to it, proposition B.1 of Park & Kim (2022,
arXiv:2202.06709) on the network's own attention: applied again and again, A alone averages
everything away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.context import Context
from retinoscope.core.coverage import Coverage, covered
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import Needs, Partial, Piece
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import check, setting
from retinoscope.core.wording import number, percent

if TYPE_CHECKING:
    from retinoscope.anatomy.value_path import SelfAttention
    from retinoscope.core.subject import Subject

_OUTCOMES = ("smoothing", "not smoothing", "tie")
_NONE = "it has no attention over positions"


@answer
class AttentionSpectrumResult(Result):
    """``tally[k]``: the share of cases with ``outcomes[k]``; a case is one head for one image.

    ``smoothing``: the dominating eigenvalue comes from λ_A = 1 alone; ``not smoothing``: from
    others alone; ``tie``: from both (within 1e-9), as where all λ_H λ_A have moduli that leave the
    eigenvalue 1 of the skip connection largest. ``smoothing[u]``, ``not_smoothing[u]`` and
    ``tie[u]`` are the shares of unit u, ``by_head[u, h]`` the share of smoothing of head h, NaN if
    there is no such head. They are NaN for the units in ``without_maps``, with the reason.
    ``decay[u, k]`` is ‖HFC(Aᵏ V)‖/‖HFC(V)‖ with the values V, a mean over heads and images.
    """

    probe: ClassVar[str] = "attention_spectrum"
    schema: ClassVar[int] = 1

    images: int
    cases: int
    complex_share: float
    """The share of cases in which a dominating λ_H or λ_A is not real."""
    outcomes: tuple[str, ...]
    without_maps: tuple[tuple[str, str], ...]
    tally: np.ndarray = axes(
        "outcome", unit="share of heads and images", rows="outcomes",
        title="Which eigenvalue dominates: that of equal tokens, another, or both",
    )  # fmt: skip
    smoothing: np.ndarray = axes(
        "unit", unit="share of heads and images",
        title="Share of heads in which smoothing dominates, by depth",
    )  # fmt: skip
    not_smoothing: np.ndarray = axes("unit", unit="share of heads and images", figure=False)
    tie: np.ndarray = axes("unit", unit="share of heads and images", figure=False)
    by_head: np.ndarray = axes(
        "unit", "head", unit="share of images", draw="matrix", limits=(0.0, 1.0),
        title="Share of images for which smoothing dominates, by head",
    )  # fmt: skip
    second: np.ndarray = axes(
        "unit", unit="|λ|", title="Largest eigenvalue of A besides 1, by depth",
    )  # fmt: skip
    """A mean over heads and images; its powers say how fast A averages."""
    negative: np.ndarray = axes(
        "unit", unit="share of eigenvalues",
        title="Eigenvalues of H with a negative real part, by depth",
    )  # fmt: skip
    """A mean over heads, without eigenvalues that are 0."""
    radius: np.ndarray = axes("unit", unit="|λ|", figure=False)
    """The largest modulus of an eigenvalue of H, a mean over heads."""
    power: np.ndarray = axes("power", unit="times", figure=False)
    decay: np.ndarray = axes(
        "unit", "power", unit="‖HFC(Aᵏ V)‖/‖HFC(V)‖", x="power", log=True,
        title="What differs between tokens after applying attention again and again",
    )  # fmt: skip

    def findings(self) -> list[str]:
        """The tally, and how fast attention alone averages."""
        said = []
        if self.cases:
            smooth, other, tie = (percent(share) for share in self.tally)
            said.append(
                f"smoothing dominates in {smooth} of {self.cases:,} cases (heads × images), "
                f"another eigenvalue in {other}, both in {tie}; in "
                f"{percent(self.complex_share)} a dominating eigenvalue is complex"
            )
        if np.isfinite(self.decay).any():
            slowest = int(np.nanargmax(np.where(np.isfinite(self.decay), self.decay, -1)[:, -1]))
            said.append(
                f"attention applied {int(self.power[-1])} times leaves at most "
                f"{number(self.decay[slowest, -1], 2)} of HFC (after {self.units[slowest]})"
            )
        if self.without_maps:
            unit, reason = self.without_maps[0]
            more = len(self.without_maps) - 1
            said.append(f"H is unknown for {unit}{f' and {more} more' * bool(more)}: {reason}")
        return said


@dataclass(frozen=True)
class AttentionSpectrum:
    """Eigenvalues of each head's attention layer, and the decay of HFC under its attention."""

    result: ClassVar[type[Result]] = AttentionSpectrumResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Does smoothing dominate the attention layers?"
    reading: ClassVar[str] = (
        "Each attention head is a linear map of tokens once its weights are known. If its largest "
        "eigenvalue belongs to equal tokens, the head smooths in the long run; Dovonon et al. "
        "(2024) find this for all heads of a ViT with random weights, but only for 58 to 70 % in "
        "ViTs trained on ImageNet. ViT⁺ smooths in all cases and ViT⁻ in none, by construction, as "
        "long as the eigenvalues of H are between −1 and 1. The curves show attention alone, "
        "without W_V, W_proj and the skip connection: it always averages, which is why both "
        "'attention is a low-pass filter' and 'transformers need not oversmooth' are true."
    )

    images: int = setting(
        8, "Number of images, the first of the split; each needs eigenvalues.", at_least=1
    )
    powers: int = setting(
        32, "How many times attention is applied for the decay of HFC.", at_least=1, at_most=1000
    )
    max_tokens: int = setting(
        1024,
        "Skip units with more tokens (per window): the time grows with the cube of their number.",
        at_least=2,
    )

    def __post_init__(self) -> None:
        check(self, "attention_spectrum")

    @property
    def needs(self) -> Needs:
        """Images, with or without labels, and attention weights and values."""
        return Needs(taps=frozenset({"weights", "values"}))

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """One piece per image."""
        reasons = {name: found for name, found in self._found(subject) if found}
        if not any(isinstance(found, list) for found in reasons.values()):
            why = next((f"{name}: {text}" for name, text in reasons.items()), _NONE)
            raise NotApplicable(
                "needs attention over positions whose queries and keys are the same tokens; "
                f"{subject.name} has none ({why})"
            )
        count = min(self.images, len(subject.split(self.needs)))
        return [Piece(f"{index:05d}", {"index": index}) for index in range(count)]

    def seconds(self, subject: Subject, context: Context) -> float:
        """The estimate from the eigenvalues of one matrix of each size."""
        from retinoscope.numerics.attention_spectrum import stochastic_eigenvalues

        total, known = 0.0, {}
        draw = np.random.default_rng(0)
        for _, found in self._found(subject):
            for one in found if isinstance(found, list) else ():
                if one.tokens not in known:
                    start = time.monotonic()
                    stochastic_eigenvalues(draw.dirichlet(np.ones(one.tokens), one.tokens))
                    known[one.tokens] = time.monotonic() - start
                total += known[one.tokens] * one.windows * one.heads
        return total

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """The eigenvalues of H of each head, or the reason why a unit has none."""
        from retinoscope.anatomy.value_path import Unclear, head_maps
        from retinoscope.numerics.attention_spectrum import product_eigenvalues

        partial: dict[str, Any] = {}
        for name, found in self._found(subject):
            if isinstance(found, str):
                partial[f"{name}/skipped"] = np.array(found)
                continue
            if not all(one.plain for one in found):
                partial[f"{name}/einsum"] = np.array(True)
            for index, one in enumerate(found):
                try:
                    maps = head_maps(subject.replay.dissection, one.attention)
                    eigenvalues = product_eigenvalues(maps.values.numpy(), maps.output.numpy())
                    partial[f"{name}/eigenvalues {index}"] = eigenvalues
                except (Unclear, np.linalg.LinAlgError) as reason:
                    partial[f"{name}/unclear"] = np.array(str(reason))
        return partial

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """The outcome of each head for one image, and the decay of HFC."""
        import torch

        split = subject.split(self.needs)
        partial: dict[str, Any] = {}
        for batch in split.batches([piece.what["index"]], 1):
            if not len(batch.images):
                continue
            partial["images"] = np.array(1)
            images, taps = subject.to_device(batch.images), self.needs.taps
            with torch.inference_mode():
                for state in subject.replay.walk(images, taps):
                    name = state.unit.name
                    if f"{name}/skipped" not in context.prepared:
                        arrays = [
                            [tensor[0].cpu().double().numpy() for tensor in state.taps.get(tap, ())]
                            for tap in ("weights", "values")
                        ]
                        partial |= self._looked(name, arrays[0], arrays[1], context.prepared)
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> AttentionSpectrumResult:
        """Shares of cases, and means over heads and images."""
        from retinoscope.numerics.ragged import padded

        kept: dict[str, dict[str, list[np.ndarray]]] = {}
        for partial in partials:
            for key, array in partial.items():
                unit, _, what = key.rpartition("/")
                kept.setdefault(what, {}).setdefault(unit, []).append(array)
        decay, outcome = kept.get("decay", {}), kept.get("outcome", {})
        names = [
            unit.name
            for unit in anatomy
            if unit.name in outcome or np.isfinite(decay.get(unit.name, np.nan)).any()
        ]
        reasons = {
            unit: str(found[0])
            for what in ("unclear", "skipped", "not stochastic")
            for unit, found in kept.get(what, {}).items()
        }
        if not names:
            why = next(
                (f"{unit}: {text}" for unit, text in reasons.items()), "no image is readable"
            )
            raise NotApplicable(f"could not read the attention of any unit ({why})")
        heads = {name: np.stack(outcome[name]) for name in names if name in outcome}
        cases = np.concatenate([found.ravel() for found in heads.values()] or [np.empty(0)])
        flags = [array for found in kept.get("complex", {}).values() for array in found]
        none = np.full((1, 1), np.nan)
        shares = [
            np.array([_share(heads.get(name, none), index).mean() for name in names])
            for index in range(len(_OUTCOMES))
        ]
        return AttentionSpectrumResult(
            coverage=_covered(anatomy, names, reasons),
            images=len(kept.get("images", {}).get("", ())),
            cases=cases.size,
            complex_share=float(np.concatenate(flags).mean()) if flags else 0.0,
            outcomes=_OUTCOMES,
            without_maps=tuple((n, reasons.get(n, "")) for n in names if n not in heads),
            tally=np.array([_share(cases, i).mean() if cases.size else np.nan for i in range(3)]),
            smoothing=shares[0],
            not_smoothing=shares[1],
            tie=shares[2],
            by_head=padded(_share(heads.get(name, none), 0).mean(0) for name in names),
            second=np.array([np.concatenate(kept["second"][name]).mean() for name in names]),
            **_of_maps(kept, names),
            power=np.arange(self.powers + 1, dtype=float),
            decay=np.stack([_mean(np.concatenate(decay[name])) for name in names]),
        )

    def _found(self, subject: Subject) -> Iterator[tuple[str, list[SelfAttention] | str]]:
        """The attentions of each unit, or why it is skipped; units without attention are empty."""
        from retinoscope.anatomy.value_path import Unclear, self_attentions

        for unit in subject.anatomy:
            try:
                found = self_attentions(subject.replay.dissection, unit.name)
            except Unclear as reason:
                yield unit.name, str(reason)
                continue
            most = max((one.tokens for one in found), default=0)
            long = f"it has {most:,} tokens; to include it: attention_spectrum:max_tokens={most}"
            yield unit.name, long if most > self.max_tokens else found

    def _looked(
        self,
        unit: str,
        weights: Sequence[np.ndarray],
        values: Sequence[np.ndarray],
        prepared: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """What is stored of the attentions of one unit; heads of all are counted in a row."""
        from retinoscope.numerics.attention_spectrum import (
            repeated_attention,
            stochastic_eigenvalues,
            tally,
            with_sum_one,
        )

        outcome, is_complex, decay, second = [], [], [], []
        for index, (given, mixed) in enumerate(zip_longest(weights, values)):
            matrix = with_sum_one(given)
            if matrix is None:
                text = "the weights of its queries do not sum to 1"
                return {f"{unit}/not stochastic": np.array(text)}
            others = stochastic_eigenvalues(matrix)
            second.append(np.abs(others).max((0, 2)))
            decay.append(np.full((given.shape[1], self.powers + 1), np.nan))
            # If heads and channels are equal in number, an einsum does not tell which is which.
            known = f"{unit}/einsum" not in prepared or mixed.shape[1] != mixed.shape[3]
            if known and len(values) == len(weights) and mixed.shape[:3] == given.shape[:3]:
                decay[-1] = repeated_attention(matrix, mixed, self.powers)
            if f"{unit}/unclear" not in prepared:
                found = tally(others, prepared[f"{unit}/eigenvalues {index}"])
                outcome.append(found[0])
                is_complex.append(found[1])
        stored = {"outcome": outcome, "complex": is_complex, "decay": decay, "second": second}
        return {f"{unit}/{k}": np.concatenate(rows) for k, rows in stored.items() if rows}


def _of_maps(
    kept: Mapping[str, Mapping[str, list[np.ndarray]]], names: Sequence[str]
) -> dict[str, Any]:
    """What the eigenvalues of H say of each unit; NaN if they are unknown."""
    from retinoscope.numerics.attention_spectrum import share_negative

    known = {
        name: [found[0] for what, units in kept.items() if what.startswith("eigenvalues ")
               for unit, found in units.items() if unit == name]
        for name in names
    }  # fmt: skip
    negative, radius = (
        np.array([
            np.concatenate([of(values) for values in known[name]]).mean() if known[name] else np.nan
            for name in names
        ])
        for of in (share_negative, lambda values: np.abs(values).max(-1))
    )  # fmt: skip
    return {"negative": negative, "radius": radius}


def _share(outcomes: np.ndarray, index: int) -> np.ndarray:
    """1 for the cases with an outcome, 0 for others, NaN if unknown."""
    return np.where(np.isnan(outcomes), np.nan, outcomes == index)


def _mean(curves: np.ndarray) -> np.ndarray:
    """The mean of the curves (cases, powers) that are known; NaN if none is."""
    known = curves[np.isfinite(curves).all(1)]
    return known.mean(0) if len(known) else np.full(curves.shape[1], np.nan)


def _covered(anatomy: Anatomy, names: Sequence[str], reasons: Mapping[str, str]) -> Coverage:
    """The coverage, with the reason of each skipped unit."""
    found = covered(anatomy, names, _NONE)
    skipped = tuple((name, reasons.get(name, why)) for name, why in found.skipped)
    return replace(found, skipped=skipped)
