"""Results and protocols in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from retinoscope.core.result import Result

_STEPS = ("high_step", "step")
_NEVER = ("stem", "head")


def by_kind(result: Result) -> list[str]:
    """For each kind of unit, how many lower what is measured; empty where there are no steps.

    Units that subsample are left out: behind them the maps are others.
    """
    array = next((getattr(result, n) for n in _STEPS if getattr(result, n, None) is not None), None)
    kinds = getattr(result, "kinds", ())
    if array is None or array.ndim != 1 or not kinds:
        return []
    sentences = []
    for kind in dict.fromkeys(k for k in kinds if k not in _NEVER):
        steps = np.array(
            [
                step
                for step, k, subsamples in zip(array, kinds, result.subsamples, strict=True)  # type: ignore[attr-defined]
                if k == kind and not subsamples and np.isfinite(step)
            ]
        )
        if steps.size:
            sentences.append(
                f"{(steps < 0).sum()} of {steps.size} {kind.replace('_', ' ')} units lower it "
                f"(median step {np.median(steps):+.3g})".replace("-", "−")
            )
    return sentences


def protocol_lines(protocol: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The protocol as pairs of a name and a text, what matters first."""
    preprocessing = protocol.get("preprocessing") or {}
    chosen = f"{protocol.get('images', '?')} of {protocol.get('of', '?')}"
    if protocol.get("left out"):
        chosen += f" ({protocol['left out']} of classes that the model does not know left out)"
    lines = [
        ("model", str(protocol.get("model", ""))),
        ("weights", str(protocol.get("weights", ""))),
        ("data", f"{protocol.get('data', '')}, split {protocol.get('split', '')}"),
        ("images", f"{chosen}, class-balanced, {protocol.get('size', '')}"),
        ("labels", str(protocol.get("labels", ""))),
        ("augmentation", _plain(protocol.get("augmentation")) or "none"),
        ("weight decay", str(protocol.get("weight decay", 0.0))),
        ("cut", _cut(preprocessing)),
        ("normalisation", f"mean {_plain(preprocessing.get('mean'))}, "
                          f"deviation {_plain(preprocessing.get('std'))}"),
        ("precision", f"{protocol.get('precision', '')} on {protocol.get('device', '')}, "
                      f"batches of {protocol.get('batch', '')}"),
        ("seed", str(protocol.get("seed", ""))),
        ("settings", _plain(protocol.get("settings")) or "none"),
        ("versions", _plain(protocol.get("versions"))),
    ]  # fmt: skip
    return lines


def protocol_in_brief(protocol: Mapping[str, Any]) -> str:
    """One line for below a figure."""
    augmented = _plain(protocol.get("augmentation")) or "not augmented"
    settings = _plain(protocol.get("settings"))
    return (
        f"{protocol.get('images')} images of {protocol.get('data')} ({protocol.get('split')}), "
        f"{augmented}, {protocol.get('size')}, {protocol.get('precision')}, weight decay "
        f"{protocol.get('weight decay')}, batch {protocol.get('batch')}, seed "
        f"{protocol.get('seed')}; {settings or 'no settings'}. Shaded: two standard errors over "
        "images."
    )


def _cut(preprocessing: Mapping[str, Any]) -> str:
    return (
        f"{preprocessing.get('crop_mode', '')}, {preprocessing.get('crop_pct', '')} of the shorter "
        f"side, {preprocessing.get('interpolation', '')}"
    )


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v) or '–'}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return "/".join(_plain(v) for v in value)
    return str(value)
