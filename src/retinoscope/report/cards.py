"""What the page says about each model before any figure: what it is, and how well it does."""

from __future__ import annotations

from typing import Any

from retinoscope.core import wording
from retinoscope.probes.accuracy import AccuracyResult
from retinoscope.report.anatomy_picture import anatomy_picture
from retinoscope.report.collect import Examined
from retinoscope.report.downloads import address


def card(subject: Examined) -> dict[str, Any]:
    """All that the card of a model shows."""
    anatomy = subject.anatomy
    return {
        "name": subject.name,
        "weights": subject.weights,
        "accuracy": accuracy(subject),
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
    """How often the model is right on each set of images on which that was measured."""
    return [
        {
            "right": result.in_short(),
            "nll": f"{wording.number(result.nll, 3)} ± {wording.number(result.nll_error, 2)}",
            "images": f"{wording.count(result.images, 'image')} of {result.protocol.get('data')}",
        }
        for result in (measured.result for measured in subject.measured)
        if isinstance(result, AccuracyResult)
    ]
