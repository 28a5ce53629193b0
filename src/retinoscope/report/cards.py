"""The card of each model at the top of the report: its description and its accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinoscope.core import wording
from retinoscope.core.subject import ASSUMED_AUGMENTATION
from retinoscope.probes.accuracy import AccuracyResult
from retinoscope.report.anatomy_picture import anatomy_picture
from retinoscope.report.collect import Examined
from retinoscope.report.downloads import address
from retinoscope.report.words import preprocessing_words


def card(subject: Examined) -> dict[str, Any]:
    """Everything that the card of a model shows."""
    anatomy = subject.anatomy
    return {
        "name": subject.name,
        "weights": subject.weights,
        "accuracy": accuracy(subject),
        "preprocessing": preprocessing(subject),
        "assumed": assumed(subject),
        "picture": anatomy_picture(anatomy),
        "sketch": anatomy.sketch,
        "summary": anatomy.summary(),
        "image": "×".join(map(str, anatomy.image)),
        "parameters": f"{anatomy.parameters:,}",
        "flops": f"{anatomy.flops:,}",
        "notes": [(unit.name, unit.note) for unit in anatomy.walk() if unit.note],
        "download": address("application/json", anatomy.to_json()),
    }


def accuracy(subject: Examined) -> list[dict[str, str]]:
    """The accuracy of the model on each set of images for which it was measured."""
    return [
        {
            "right": result.in_short(),
            "nll": f"{wording.number(result.nll, 3)} ± {wording.number(result.nll_error, 2)}",
            "images": f"{wording.count(result.images, 'image')} of {result.protocol.get('data')}",
        }
        for result in (measured.result for measured in subject.measured)
        if isinstance(result, AccuracyResult)
    ]


def preprocessing(subject: Examined) -> list[str]:
    """Size, crop, interpolation and normalisation of the images, one line per variant."""
    protocols = [measured.result.protocol for measured in subject.measured]
    return list(dict.fromkeys(map(preprocessing_words, filter(_prepared, protocols))))


def assumed(subject: Examined) -> list[str]:
    """The assumptions about the model; those about augmentation only if images were augmented."""
    protocols = [measured.result.protocol for measured in subject.measured]
    augmented = any(protocol.get("augmentation") for protocol in protocols)
    entries = dict.fromkeys(
        str(entry)
        for protocol in (subject.protocol, *protocols)
        for entry in protocol.get("assumed", ())
    )
    return [text for text in entries if augmented or not text.startswith(ASSUMED_AUGMENTATION)]


def _prepared(protocol: Mapping[str, Any]) -> bool:
    return bool(protocol.get("preprocessing"))
