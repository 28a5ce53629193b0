"""Sharpness-aware minimisation: update by the gradient at the worst point nearby.

Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization" (ICLR 2021,
arXiv:2010.01412), with the first-order approximation of its equation 2: the worst point is up the
gradient, at the distance of the radius.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def climbed(parameters: Iterable[Tensor], radius: float) -> Iterator[None]:
    """Move the parameters ``radius`` up their gradient; restore them after the block.

    The gradients are cleared on entry, so that only those at the worst point remain.
    """
    moved = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in moved if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    before = [p.detach().clone() for p in moved]
    # A zero gradient has no direction to move in.
    scale = torch.where(norm > 0, radius / norm, torch.zeros_like(norm))
    with torch.no_grad():
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.add_(gradient * scale.to(gradient.device))
            parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            # Copied, because subtracting the step would not restore every bit.
            for parameter, old in zip(moved, before, strict=True):
                parameter.copy_(old)


@contextmanager
def unrecorded(model: nn.Module) -> Iterator[None]:
    """Inside the block, batch norms use batch statistics but keep their running statistics."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    kept = [(m, m.running_mean, m.running_var, m.num_batches_tracked) for m in norms]
    for module, mean, variance, batches in kept:
        module.running_mean = mean.clone() if mean is not None else None
        module.running_var = variance.clone() if variance is not None else None
        module.num_batches_tracked = batches.clone() if batches is not None else None
    try:
        yield
    finally:
        for module, mean, variance, batches in kept:
            module.running_mean, module.running_var = mean, variance
            module.num_batches_tracked = batches
