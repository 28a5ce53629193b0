"""Protocols as readable text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinoscope.core.result import Result
from retinoscope.core.wording import nll_words

_LEARNED = ("tested on", "epochs", "recipe")
"""Entries that only the protocol of a training has."""


def protocol_lines(protocol: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The protocol as pairs of a name and a text, the most important first."""
    preprocessing = protocol.get("preprocessing") or {}
    chosen = f"{protocol.get('images', '?')} of {protocol.get('of', '?')}"
    if protocol.get("left out"):
        chosen += f" ({protocol['left out']} of classes that the model does not know left out)"
    # Earlier results did not count: what they call balanced may not be exactly so.
    even = "approximately balanced over classes" if protocol.get("balanced") else ""
    choice = f", {said}" if (said := protocol.get("choice", even)) else ""
    device = f" on {protocol['device']}" if protocol.get("device") else ""
    lines = [
        ("model", str(protocol.get("model", ""))),
        ("weights", str(protocol.get("weights", ""))),
        ("data", f"{protocol.get('data', '')}, split {protocol.get('split', '')}"),
        ("images", f"{chosen}{choice}, {protocol.get('size', '')}"),
        ("labels", str(protocol.get("labels", ""))),
        ("augmentation", _plain(protocol.get("augmentation")) or "none"),
        *((key, _plain(protocol[key])) for key in ("view", "passes") if protocol.get(key)),
        *([("assumed", "; ".join(protocol["assumed"]))] if protocol.get("assumed") else []),
        ("weight decay", str(protocol.get("weight decay", 0.0))),
        ("cut", _cut(preprocessing)),
        ("normalisation", 
            f"mean {_plain(preprocessing.get('mean'))}, standard deviation  "
            f"{_plain(preprocessing.get('std'))}"),
        ("precision", f"{protocol.get('precision', '')}{device}, "
                      f"batches of {protocol.get('batch', '')}"),
        ("seed", str(protocol.get("seed", ""))),
        *((key, _plain(protocol[key])) for key in _LEARNED if key in protocol),
        ("settings", _plain(protocol.get("settings")) or "none"),
        ("versions", _plain(protocol.get("versions"))),
    ]  # fmt: skip
    return lines


def preprocessing_words(protocol: Mapping[str, Any]) -> str:
    """The preprocessing of the images, in one line.

    Example:
        >>> plain = {"crop_pct": 0.9, "crop_mode": "center", "interpolation": "bicubic"}
        >>> plain |= {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
        >>> preprocessing_words({"size": "32×32", "preprocessing": plain})
        '32×32 px, center crop, 0.9 of the shorter side, bicubic; mean 0.5/0.5/0.5, std 0.2/0.2/0.2'
    """
    given = protocol["preprocessing"]
    return (
        f"{protocol.get('size')} px, {given.get('crop_mode')} crop, {given.get('crop_pct')} of the "
        f"shorter side, {given.get('interpolation')}; mean {_plain(given.get('mean'))}, std "
        f"{_plain(given.get('std'))}"
    )


def protocol_in_brief(result: Result, errors: str) -> str:
    """One line for a figure's caption; ``errors`` says how standard errors are drawn, if so."""
    protocol = result.protocol
    values = result.values()
    measured = values.get("images", protocol.get("images"))
    aside = len(protocol.get("set aside", ()))
    lost = f" ({aside} more could not be read)" if aside else ""
    augmented = _plain(protocol.get("augmentation")) or "not augmented"
    if protocol.get("view"):
        augmented = _plain(protocol["view"])
    if protocol.get("passes"):
        augmented += f", {protocol['passes']} passes"
    settings = _plain(protocol.get("settings")) or _recipe(protocol) or "no settings"
    loss = next((values[key] for key in ("nll", "centre_nll") if values.get(key) is not None), None)
    at = "" if loss is None else f" At {nll_words(loss)}."
    shown = f" {errors}: two standard errors over {_drawn(result)}." if errors else ""
    return (
        f"{measured} images{lost} of {protocol.get('data')} ({protocol.get('split')}), "
        f"{augmented}, {protocol.get('size')}, {protocol.get('precision')}, weight decay "
        f"{protocol.get('weight decay')}, batch {protocol.get('batch')}, seed "
        f"{protocol.get('seed')}; {settings}.{at}{shown}"
    )


def _drawn(result: Result) -> str:
    """What a result was averaged over: mini-batches if one of its arrays counts them."""
    named = {axis for f in result.described().values() for axis in f.metadata["axes"]}
    return "mini-batches" if "mini-batch" in named else "images"


def _recipe(protocol: Mapping[str, Any]) -> str:
    """The recipe of a training, its length, and its test data."""
    if "recipe" not in protocol:
        return ""
    name = protocol["recipe"].get("name", "")
    return f"recipe {name}, {protocol.get('epochs')} epochs; tested on {protocol.get('tested on')}"


def _cut(preprocessing: Mapping[str, Any]) -> str:
    return (
        f"{preprocessing.get('crop_mode', '')}, {preprocessing.get('crop_pct', '')} of the shorter "
        f"side, {preprocessing.get('interpolation', '')}"
    )


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {text}" for k, v in value.items() if (text := _plain(v)))
    if isinstance(value, list | tuple):
        return "/".join(_plain(v) for v in value)
    return str(value)
