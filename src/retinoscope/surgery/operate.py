"""Applies surgeries to any model."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from torch import nn

from retinoscope.anatomy.dissect import known_or_taken_apart
from retinoscope.anatomy.example import Example
from retinoscope.core.errors import WrongInput
from retinoscope.core.surgery import Surgery
from retinoscope.surgery import parse_surgery


def operate(
    model: nn.Module,
    *surgeries: Surgery | str,
    example: Example | None = None,
    name: str | None = None,
) -> nn.Module:
    """A copy of ``model`` with the surgeries applied in order; ``model`` is not modified.

    Args:
        model: Any module that maps a batch of images to logits.
        surgeries: Surgeries, or their string form: ``"mc_dropout:p=0.1"``.
        example: A batch (N, C, H, W), or an image size: a number, or (height, width). Default: the
            size in the model's timm configuration, else 224.
        name: The name of the model in error messages. Default: the name of its class.
    """
    chosen = [parse_surgery(s) if isinstance(s, str) else s for s in surgeries]
    for surgery in chosen:
        if isinstance(surgery, type) or not hasattr(surgery, "operate"):
            raise WrongInput(
                f"{surgery!r} is not a surgery. Pass one with its settings, such as "
                "McDropout(p=0.1), or its string form: 'mc_dropout:p=0.1'"
            )
    if example is None:
        configuration = getattr(model, "pretrained_cfg", None)
        own = configuration.get("input_size") if isinstance(configuration, Mapping) else None
        example = (own[1], own[2]) if own else 224
    patient = model if chosen else deepcopy(model)
    for surgery in chosen:
        found = known_or_taken_apart(patient, example, name)
        patient = surgery.operate(patient, found.anatomy)
    return patient
