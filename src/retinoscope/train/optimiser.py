"""The optimiser of a recipe, and its state as tensors and plain values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import timm.optim
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinoscope.core.errors import did_you_mean
from retinoscope.core.settings import WrongSetting
from retinoscope.train.recipe import Recipe

_FUSED = ("cpu", "cuda", "mps")


def make_optimiser(model: nn.Module, recipe: Recipe) -> Optimizer:
    """Timm's optimiser of that name; decay on all parameters, or on matrices and kernels alone."""
    known = [str(name) for name in timm.optim.list_optimizers()]
    if recipe.optimiser not in known:
        raise WrongSetting(
            f"timm has no optimiser {recipe.optimiser!r}. {did_you_mean(recipe.optimiser, known)}"
            f"It has: {', '.join(known)}."
        )
    device = next(model.parameters()).device.type
    kind = timm.optim.get_optimizer_class(recipe.optimiser, bind_defaults=False)
    fused = device in _FUSED and "fused" in inspect.signature(kind).parameters
    # One kernel for all parameters: small networks have many small ones.
    more: dict[str, Any] = {"fused": True} if fused else {}
    # Given a network, timm would spare what the network names, whatever it is asked.
    everything = [p for p in model.parameters() if p.requires_grad]
    return timm.optim.create_optimizer_v2(
        model if recipe.decayed == "matrices" else everything,
        opt=recipe.optimiser,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        **more,
    )


def optimiser_state(optimiser: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Its tensors by ``parameter.name``, and its plain values."""
    found = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for place, state in found["state"].items():
        for name, value in state.items():
            key = f"{place}.{name}"
            (tensors if isinstance(value, Tensor) else plain)[key] = value
    return tensors, {"state": plain, "groups": found["param_groups"]}


def restore_optimiser(
    optimiser: Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Put back what :func:`optimiser_state` gave."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in (*tensors.items(), *plain["state"].items()):
        place, _, name = key.partition(".")
        # What an optimiser keeps must not share memory with what was read from a file.
        kept = value.clone() if isinstance(value, torch.Tensor) else value
        state.setdefault(int(place), {})[name] = kept
    optimiser.load_state_dict({"state": state, "param_groups": plain["groups"]})
