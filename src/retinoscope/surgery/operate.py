"""Any model and some surgeries → the operated model."""

from __future__ import annotations

from torch import nn

from retinoscope.anatomy.dissect import dissect
from retinoscope.anatomy.example import Example
from retinoscope.core.surgery import Surgery
from retinoscope.surgery import parse_surgery


def operate(
    model: nn.Module, *surgeries: Surgery | str, example: Example = 224, name: str | None = None
) -> nn.Module:
    """A copy of ``model`` on which the surgeries were done in turn; ``model`` is left untouched.

    Args:
        model: Any module that turns a batch of images into logits.
        surgeries: Surgeries, or how they are written: ``"mc_dropout:p=0.1"``.
        example: A batch (N, C, H, W), or an image size: a number, or (height, width).
        name: What to call the model in errors; the name of its class if not given.
    """
    for surgery in surgeries:
        chosen = parse_surgery(surgery) if isinstance(surgery, str) else surgery
        model = chosen.operate(model, dissect(model, example, name=name))
    return model
