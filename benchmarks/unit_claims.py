"""Claims of the papers about units, each with what the trained micro networks say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retinoscope.core.result import Result
from retinoscope.numerics.contrast import block_contrast

PARK = "Park & Kim, 2022, arXiv:2202.06709"
SMOOTHING = "Park & Kim, 2022, arXiv:2105.12639"
BROADCASTING = "Hyeon-Woo et al., 2023, arXiv:2210.08457"
OVERSMOOTHING = "Dovonon et al., 2024, arXiv:2401.04301"
_PLURAL = {"attention": "attention units", "mlp": "MLPs", "conv": "convolutions"}
STAGED = ("micro_resnet", "micro_pit", "micro_swin")

Seeds = Sequence[Mapping[str, Result]]
"""For each seed, the results by probe."""
Found = Mapping[str, Seeds]
"""By network; ``NAME, random`` has random weights."""
Finding = tuple[bool | None, str]
"""Whether it agrees with the claim (None: partly), and the sentence."""


@dataclass(frozen=True)
class Claim:
    """A published claim and how to check it."""

    source: str
    words: str
    networks: tuple[str, ...]
    check: Callable[[Found], Finding]


def _units(results: Seeds, probe: str, field: str, kind: str, first: bool = False) -> np.ndarray:
    """The values of all units of a kind that do not subsample, of all seeds."""
    values = []
    for seed in results:
        found = seed[probe]
        chosen = [
            value
            for value, own, smaller in zip(
                getattr(found, field), found.kinds, found.subsamples, strict=True
            )
            if own == kind and not smaller and np.isfinite(value)
        ]
        values += chosen[:1] if first else chosen
    return np.array(values)


def _counted(
    found: Found, networks: Iterable[str], probe: str, field: str, kind: str, sign: int,
    first: bool = False,
) -> tuple[list[float], str]:  # fmt: skip
    """The share of units with that sign in each network, and these numbers in words."""
    shares, words = [], []
    for name in networks:
        values = _units(found[name], probe, field, kind, first)
        if not len(values):
            continue
        hits = int((sign * values > 0).sum())
        shares.append(hits / len(values))
        words.append(f"{hits} of {len(values)} units of {name} (median {np.median(values):+.3g})")
    return shares, ", ".join(words)


def _majority(shares: Sequence[float]) -> bool | None:
    return True if min(shares) > 0.5 else False if max(shares) < 0.5 else None


def _by_kind(found: Found, probe: str, field: str, networks: Sequence[str]) -> Finding:
    """Attention lowers a quantity; MLPs and convolutions raise it."""
    kinds = (("attention", -1), ("mlp", 1), ("conv", 1))
    shares, sentences = [], []
    for kind, sign in kinds:
        own, words = _counted(found, networks, probe, field, kind, sign)
        shares += own
        doing = "lower" if sign < 0 else "raise"
        if words:
            sentences.append(f"{_PLURAL[kind]} {doing} it in {words}")
    return _majority(shares), "; ".join(sentences)


def frequencies(found: Found) -> Finding:
    """Attention is a low-pass filter, MLPs and convolutions are high-pass filters."""
    return _by_kind(found, "fourier", "high_step", ("micro_vit", "micro_resnet"))


def first_attention(found: Found) -> Finding:
    """The first attention unit of each seed."""
    shares, words = _counted(
        found, ("micro_vit",), "fourier", "high_step", "attention", 1, first=True
    )
    return _majority(shares), f"the first attention unit raises the highest frequency in {words}"


def amplified(found: Found) -> Finding:
    """The highest frequency at the first and the last unit of the ResNet."""
    ends = np.array([seed["fourier"].high[[0, -1]] for seed in found["micro_resnet"]])
    first, last = ends.mean(0)
    return bool((ends[:, 1] > ends[:, 0]).all()), (
        f"relative to frequency 0, the highest frequency goes from {first:.2f} to {last:.2f}"
    )


def staged_attention(found: Found) -> Finding:
    """Attention of networks with stages."""
    shares, words = _counted(
        found, ("micro_pit", "micro_swin"), "fourier", "high_step", "attention", -1
    )
    return _majority(shares), f"attention lowers the highest frequency in {words}"


def variances(found: Found) -> Finding:
    """Attention lowers the variance over positions, MLPs and convolutions raise it."""
    return _by_kind(found, "variance", "step", ("micro_vit", "micro_resnet"))


def peaks(found: Found) -> Finding:
    """Whether the variance is highest at the end of each stage of the ResNet."""
    hits, total = 0, 0
    for seed in found["micro_resnet"]:
        result = seed["variance"]
        for values in _by_stage(result, result.variance):
            hits, total = hits + int(np.argmax(values) == len(values) - 1), total + 1
    return _majority(
        [hits / total]
    ), f"it is highest after the last unit in {hits} of {total} stages"


def last_stage_of_swin(found: Found) -> Finding:
    """The attention units of the stage before the last, or of the last if there are two."""
    values, stages = [], 0
    for seed in found["micro_swin"]:
        result = seed["variance"]
        names = sorted({stage for stage in result.stages if stage is not None})
        stages = len(names)
        chosen = names[-2] if stages > 2 else names[-1]
        values += [
            step
            for step, kind, stage in zip(result.step, result.kinds, result.stages, strict=True)
            if kind == "attention" and stage == chosen
        ]
    hits = int((np.array(values) >= 0).sum())
    return _majority([hits / len(values)]), (
        f"micro_swin has {stages} stages; in the {'last' if stages < 3 else 'last but one'}, "
        f"{hits} of {len(values)} attention units do not lower the variance"
    )


def blocks(found: Found) -> Finding:
    """The CKA within stages minus that between, and the same for thirds of a ViT."""
    staged = {
        name: [float(s["similarity"].contrast) for s in found[name]]  # pyright: ignore
        for name in STAGED
    }
    thirds = []
    for seed in found["micro_vit"]:
        cka = seed["similarity"].cka
        stages = [3 * index // len(cka) for index in range(len(cka))]
        thirds.append(float(block_contrast(cka, stages)))  # pyright: ignore[reportArgumentType]
    words = ", ".join(f"{np.mean(v):.2f} in {name}" for name, v in staged.items())
    above = [np.mean(values) > np.mean(thirds) for values in staged.values()]
    return (True if all(above) else None if any(above) else False), (
        f"CKA within minus between stages: {words}; {np.mean(thirds):.2f} between thirds of "
        "micro_vit, which has no stages"
    )


def _by_stage(result: Result, values: np.ndarray) -> list[np.ndarray]:
    """The values of each stage that has several units."""
    stages = sorted({stage for stage in result.stages if stage is not None})
    found = [values[[own == stage for own in result.stages]] for stage in stages]
    return [own for own in found if len(own) > 1]


def _ends(found: Found, networks: Sequence[str], kinds: Sequence[str], sign: int) -> Finding:
    """Whether the first (1) or the last (−1) unit of a kind matters more, in points of accuracy."""
    shares, words = [], []
    for name in networks:
        pairs = [
            (row.partition(" ")[0], 100 * value)
            for seed in found[name]
            for row, value in zip(
                seed["lesion"].end_kinds, seed["lesion"].end_difference, strict=True
            )
        ]
        values = [value for kind, value in pairs if kind in kinds]
        if values:
            # The difference is first − last of changes, which are negative.
            hits = sum(sign * value < 0 for value in values)
            shares.append(hits / len(values))
            words.append(f"{np.mean(values):+.1f} points in {name}")
    if not words:
        return None, "no network has several such units in a stage"
    return _majority(shares), f"first minus last unit of a stage: {', '.join(words)}"


def periodic(found: Found) -> Finding:
    """Whether lesions at the first and the last unit of stages differ, by their intervals."""
    hits, total = 0, 0
    for name in STAGED:
        for seed in found[name]:
            for low, high in seed["lesion"].end_difference_interval:
                hits, total = hits + int(low > 0 or high < 0), total + 1
    if not total:
        return None, "no network has several units of a kind in a stage"
    return _majority([hits / total]), (
        f"the first and the last unit of a kind differ by their 95 % interval in {hits} of "
        f"{total} cases (networks × seeds × kinds)"
    )


def starts(found: Found) -> Finding:
    """Convolutions and MLPs at the start of a stage."""
    return _ends(found, ("micro_resnet", "micro_swin"), ("conv", "mlp"), 1)


def attention_at_ends(found: Found) -> Finding:
    """Attention at the end of a stage."""
    return _ends(found, ("micro_swin", "micro_pit", "micro_vit"), ("attention",), -1)


def early(found: Found) -> Finding:
    """The mean damage in the first and the last stage of the ResNet."""
    ends = []
    for seed in found["micro_resnet"]:
        result = seed["lesion"]
        stages = sorted({stage for stage in result.stages if stage is not None})
        ends.append([
            100 * result.accuracy_change[[own == stage for own in result.stages]].mean()
            for stage in (stages[0], stages[-1])
        ])  # fmt: skip
    first, last = np.mean(ends, 0)
    return bool(first < last), (
        f"a unit less changes the accuracy by {first:+.1f} points in the first stage and by "
        f"{last:+.1f} in the last"
    )


def averaging(found: Found) -> Finding:
    """HFC after attention has been applied 32 times."""
    names = ("micro_vit", "micro_swin", "micro_pit")
    left = {
        name: max(float(np.nanmax(s["attention_spectrum"].decay[:, -1])) for s in found[name])
        for name in names
    }
    words = ", ".join(f"{value:.1e} in {name}" for name, value in left.items())
    return max(left.values()) < 1, (
        f"at most this share of HFC is left after 32 times: {words}; masks of shifted windows keep "
        "some tokens apart"
    )


def neighbours(found: Found) -> Finding:
    """How far the points of maps of white noise vary together."""
    reach = {}
    for name in ("one convolution", "five convolutions"):
        result = found[name][0]["consistency"]
        above = np.flatnonzero(result.correlation[-1] > 2 * result.floor)
        reach[name] = int(above.max(initial=0))
    words = ", ".join(f"{value} positions after {name}" for name, value in reach.items())
    return reach["one convolution"] == 2 < reach["five convolutions"], (
        f"on white noise, |correlation| is above twice its noise level up to {words}"
    )


def entropy(found: Found) -> Finding:
    """The mean normalised entropy with and without Context Broadcasting, seed by seed."""
    both = np.array([
        [float(np.nanmean(seed["attention"].normalised_entropy)) for seed in found[name]]
        for name in ("micro_vit_cb", "micro_vit")
    ])  # fmt: skip
    lower = both[0] < both[1]
    return (True if lower.all() else None if lower.any() else False), (
        f"{both[0].mean():.3f} of the largest possible entropy with it, {both[1].mean():.3f} "
        "without it"
    )


def _tally(found: Found, name: str) -> np.ndarray:
    return np.mean([seed["attention_spectrum"].tally for seed in found[name]], 0)


def _said(tally: np.ndarray, name: str) -> str:
    return (
        f"smoothing dominates in {100 * tally[0]:.1f} % of cases in {name}, another eigenvalue in "
        f"{100 * tally[1]:.1f} %, both in {100 * tally[2]:.1f} %"
    )


def random_smooths(found: Found) -> Finding:
    """A ViT with random weights."""
    tally = _tally(found, "micro_vit, random")
    return bool(tally[0] == 1), _said(tally, "micro_vit with random weights")


def trained_smooths(found: Found) -> Finding:
    """A trained ViT."""
    tally = _tally(found, "micro_vit")
    return bool(tally[0] > 0.9), _said(tally, "micro_vit")


def signs(found: Found) -> Finding:
    """ViT⁺ and ViT⁻."""
    plus, minus = (_tally(found, f"micro_vit_{sign}") for sign in ("plus", "minus"))
    return bool(plus[0] == 1 and minus[0] == 0), (
        f"{_said(plus, 'micro_vit_plus')}; {_said(minus, 'micro_vit_minus')}"
    )


def _change(seeds: Seeds) -> tuple[float, float]:
    ends = np.mean([seed["oversmoothing"].ratio[[0, -1]] for seed in seeds], 0)
    return float(ends[0]), float(ends[1])


def ratios(found: Found) -> Finding:
    """HFC/LFC of ViT⁺ and ViT⁻."""
    plus, minus = (_change(found[f"micro_vit_{sign}"]) for sign in ("plus", "minus"))
    agrees = plus[1] < plus[0] and minus[1] >= minus[0]
    return (True if agrees else None if plus[1] / plus[0] < minus[1] / minus[0] else False), (
        f"HFC/LFC goes from {plus[0]:.2f} to {plus[1]:.2f} in micro_vit_plus and from "
        f"{minus[0]:.2f} to {minus[1]:.2f} in micro_vit_minus"
    )


def collapse(found: Found) -> Finding:
    """HFC/LFC of a ViT with its own and with random weights."""
    both = np.mean([
        seed["oversmoothing"].compared[:, [0, -1]] for seed in found["micro_vit"]
    ], 0)  # fmt: skip
    (own, own_end), (random, random_end) = both
    return bool(random_end < 0.5 * random and own_end > 0.5 * own), (
        f"HFC/LFC goes from {own:.2f} to {own_end:.2f} with its own weights and from {random:.2f} "
        f"to {random_end:.2f} with random weights"
    )


_VIT_AND_RESNET = ("micro_vit", "micro_resnet")
_SIGNED = ("micro_vit_plus", "micro_vit_minus")
CLAIMS = (
    Claim(PARK, "attention is a low-pass filter, convolutions and MLPs are high-pass filters",
          _VIT_AND_RESNET, frequencies),
    Claim(PARK, "the first attention layers of a ViT act like convolutions and raise high "
          "frequencies", ("micro_vit",), first_attention),
    Claim(PARK, "ResNets amplify high frequencies with depth", ("micro_resnet",), amplified),
    Claim(PARK, "the attention of PiT and Swin is a low-pass filter too",
          ("micro_pit", "micro_swin"), staged_attention),
    Claim(PARK, "attention lowers the variance of feature maps, convolutions and MLPs raise it",
          _VIT_AND_RESNET, variances),
    Claim(PARK, "in ResNets, the variance peaks at the ends of stages", ("micro_resnet",), peaks),
    Claim(PARK, "late attention in the third stage of Swin is an exception and does not lower the "
          "variance", ("micro_swin",), last_stage_of_swin),
    Claim(PARK, "representations of networks with stages form blocks, those of a ViT do not",
          (*STAGED, "micro_vit"), blocks),
    Claim(PARK, "the effect of lesions is periodic: it depends on the place within a stage",
          STAGED, periodic),
    Claim(PARK, "removing convolutions or MLPs at the start of a stage hurts most",
          ("micro_resnet", "micro_swin"), starts),
    Claim(PARK, "removing attention at the end of a stage hurts most",
          ("micro_swin", "micro_pit", "micro_vit"), attention_at_ends),
    Claim(PARK, "in ResNets, removing units of early stages hurts more than of late ones",
          ("micro_resnet",), early),
    Claim(PARK, "averaging with probabilities removes high frequencies (proposition B.1)",
          ("micro_vit", "micro_swin", "micro_pit"), averaging),
    Claim(SMOOTHING, "neighbouring points of feature maps are correlated even for independent "
          "pixels: up to distance 2 after one 3 × 3 convolution, further in deep networks",
          ("one convolution", "five convolutions"), neighbours),
    Claim(BROADCASTING, "Context Broadcasting lowers the entropy of attention",
          ("micro_vit_cb", "micro_vit"), entropy),
    Claim(OVERSMOOTHING, "smoothing dominates in all cases in a ViT with random weights",
          ("micro_vit, random",), random_smooths),
    Claim(OVERSMOOTHING, "in a ViT trained on CIFAR, smoothing dominates in almost all cases "
          "(98.9 %)", ("micro_vit",), trained_smooths),
    Claim(OVERSMOOTHING, "smoothing dominates always in ViT⁺ and never in ViT⁻", _SIGNED, signs),
    Claim(OVERSMOOTHING, "HFC/LFC falls towards 0 in ViT⁺ and grows or stays in ViT⁻", _SIGNED,
          ratios),
    Claim(OVERSMOOTHING, "with random weights HFC/LFC of a ViT collapses with depth, after "
          "training it does not", ("micro_vit",), collapse),
)  # fmt: skip
