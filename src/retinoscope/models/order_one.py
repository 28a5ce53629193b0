"""Weights drawn at order one, so that nothing in an untrained model hides.

Fresh models often switch their branches off: last norms start at zero, layer scales at 1e-6. What
is shown about such a model (that removing a unit is exact, a replay faithful) could not fail.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def draw_at_order_one(model: nn.Module, seed: int = 0) -> nn.Module:
    """Redraw all parameters and batch statistics of ``model`` in place; returns it.

    Matrices and kernels keep the variance of what passes through them (1 / fan-in); vectors are
    drawn around 1 where they were positive (scales), else around 0, half a unit wide.
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
            assert module.running_var is not None  # the two come together
            module.running_var.copy_(1.0 + 0.5 * normal(module.running_var).abs())
    return model
