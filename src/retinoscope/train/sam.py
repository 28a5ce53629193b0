"""Sharpness-aware minimisation: step by the gradient of the worst place nearby.

Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization" (ICLR 2021,
arXiv:2010.01412), with the first-order worst place of its equation 2: up the gradient, as far as
the radius.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def climbed(parameters: Iterable[Tensor], radius: float) -> Iterator[None]:
    """Within, the parameters lie ``radius`` up their gradients; behind, where they were.

    The gradients are cleared on the way in, so that those of the worst place are what remains.
    """
    moved = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in moved if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    before = [p.detach().clone() for p in moved]
    # Where the gradient is zero there is no way up.
    scale = torch.where(norm > 0, radius / norm, torch.zeros_like(norm))
    with torch.no_grad():
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.add_(gradient * scale.to(gradient.device))
            parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            # Copied back, not moved back: the sum need not be undone to the last bit.
            for parameter, old in zip(moved, before, strict=True):
                parameter.copy_(old)


@contextmanager
def unrecorded(model: nn.Module) -> Iterator[None]:
    """Within, batch norms use their batch but keep their running statistics as they are."""
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
