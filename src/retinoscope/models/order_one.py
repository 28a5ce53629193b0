"""Weights drawn at order one, so that every part of an untrained model has an effect.

New models often switch off their branches: last norms start at zero, layer scales at 1e-6. Tests on
such a model (for example that removing a unit is exact, or a replay faithful) could never fail.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def draw_at_order_one(model: nn.Module, seed: int = 0) -> nn.Module:
    """Redraw all parameters and batch norm statistics of ``model`` in place, and return it.

    Matrices and kernels get a variance of 1 / fan-in, which preserves the variance of their input.
    Vectors get a standard deviation of 0.5 and a mean of 1 if theirs was positive (scales), else 0.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim > 1 and parameter.shape[0] > 1:
            parameter.copy_(normal(parameter) / max(1, parameter[0].numel()) ** 0.5)
        else:
            centre = 1.0 if parameter.numel() and parameter.float().mean() > 0 else 0.0
            parameter.copy_(centre + 0.5 * normal(parameter))
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            module.running_mean.copy_(0.5 * normal(module.running_mean))
            assert module.running_var is not None  # set whenever running_mean is
            module.running_var.copy_(1.0 + 0.5 * normal(module.running_var).abs())
    return model
