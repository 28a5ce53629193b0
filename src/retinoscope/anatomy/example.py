"""Example images for a model, from a batch or a size."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from retinoscope.core.errors import NotABackbone, WrongInput

Example = Tensor | int | tuple[int, int]

_COLOURS = 4
_FORMS = "An example must be a batch of images (N, C, H, W) or an image size (224, or (224, 160))"


def as_batch(model: nn.Module, example: Example, images: int = 2) -> Tensor:
    """Images of the size, type and device that ``model`` expects."""
    if not isinstance(model, nn.Module):
        raise NotABackbone(f"The model must be an nn.Module; got {_described(model)}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise NotABackbone(
            "A ScriptModule has no Python code to export; pass the nn.Module it was made from."
        )
    floating = (p for p in [*model.parameters(), *model.buffers()] if p.is_floating_point())
    like = next(floating, torch.empty(0))
    if isinstance(example, Tensor):
        return _from_tensor(example, like, images)
    height, width = _sides(example)
    shape = (images, image_channels(model), height, width)
    return torch.zeros(shape, dtype=like.dtype, device=like.device)


def image_channels(model: nn.Module) -> int:
    """The number of input channels: that of the first convolution, if plausible for images."""
    first = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 0)
    if 1 <= first <= _COLOURS:
        return first
    configured = getattr(getattr(model, "config", None), "num_channels", None)
    return configured if isinstance(configured, int) else 3


def _from_tensor(example: Tensor, like: Tensor, images: int) -> Tensor:
    if example.ndim != 4 or not example.numel():
        raise WrongInput(f"{_FORMS}; got a tensor of shape {tuple(example.shape)}.")
    if example.dtype != like.dtype:
        raise WrongInput(
            f"The model works in {like.dtype}, but the images are {example.dtype}. "
            f"Convert one of the two: batch.to({like.dtype}), or model.to(…)."
        )
    return example[:1].expand(images, -1, -1, -1).clone()


def _sides(example: Any) -> tuple[int, int]:
    sides = example if isinstance(example, Sequence) else (example, example)
    if (
        isinstance(example, str)
        or len(sides) != 2
        or not all(isinstance(s, Integral) for s in sides)
    ):
        raise WrongInput(f"{_FORMS}; got {_described(example)}.")
    height, width = int(sides[0]), int(sides[1])
    if height < 1 or width < 1:
        raise WrongInput(f"An image of {height}×{width} pixels has no positions.")
    return height, width


def _described(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else repr(thing)
