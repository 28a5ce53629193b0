"""The optimiser of a recipe, and its state as tensors and plain values."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import timm.optim
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinoscope.core.errors import did_you_mean, first_line
from retinoscope.core.settings import WrongSetting
from retinoscope.train.recipe import Recipe

_FUSED = ("cpu", "cuda", "mps")


def make_optimiser(model: nn.Module, recipe: Recipe) -> Optimizer:
    """The timm optimiser of a recipe; weight decay on all parameters or on matrices and kernels."""
    known = [str(name) for name in timm.optim.list_optimizers()]
    if recipe.optimiser not in known:
        raise WrongSetting(
            f"timm has no optimiser {recipe.optimiser!r}. {did_you_mean(recipe.optimiser, known)}"
            f"It has: {', '.join(known)}."
        )
    device = next(model.parameters()).device.type
    kind = timm.optim.get_optimizer_class(recipe.optimiser, bind_defaults=False)
    fused = device in _FUSED and "fused" in inspect.signature(kind).parameters
    # One kernel updates all parameters: small networks have many small ones.
    more: dict[str, Any] = {"fused": True} if fused else {}
    # Given the network, timm would exempt some parameters from weight decay in any case.
    everything = [p for p in model.parameters() if p.requires_grad]
    try:
        made = timm.optim.create_optimizer_v2(
            model if recipe.decayed == "matrices" else everything,
            opt=recipe.optimiser,
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            **more,
        )
    except (AssertionError, RuntimeError, ImportError, TypeError) as error:
        raise WrongSetting(
            f"timm's optimiser {recipe.optimiser!r} cannot be made here: {first_line(error)}"
        ) from error
    _check_plain(made, recipe.optimiser)
    return made


def _check_plain(optimiser: Optimizer, name: str) -> None:
    """Refuse an optimiser whose state cannot be saved to a file."""
    try:
        json.dumps(optimiser_state(optimiser)[1])
    except TypeError as error:
        raise WrongSetting(
            f"The optimiser {name!r} has settings that cannot be kept for resuming: {error}. Use "
            "another one, such as adamw."
        ) from None


def optimiser_state(optimiser: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser by name, for parameters and groups, and its plain values."""
    found = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    held = [(f"state.{place}", values) for place, values in found["state"].items()]
    held += [(f"group.{place}", values) for place, values in enumerate(found["param_groups"])]
    for name, values in held:
        plain[name] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{name}.{key}"] = value
            else:
                plain[name][key] = value
    return tensors, plain


def restore_optimiser(
    optimiser: Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Mapping[str, Any]]
) -> None:
    """Restore what :func:`optimiser_state` returned."""
    held: dict[str, dict[str, Any]] = {name: dict(values) for name, values in plain.items()}
    for key, value in tensors.items():
        name, _, inner = key.rpartition(".")
        # The optimiser's state must not share memory with tensors that were read from a file.
        held[name][inner] = value.clone()
    state = {int(name[6:]): values for name, values in held.items() if name.startswith("state.")}
    groups = [held[name] for name in held if name.startswith("group.")]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            _lay_out(optimiser.state[parameter], parameter)


def _lay_out(state: dict[str, Any], parameter: Tensor) -> None:
    """Give a parameter's state the parameter's memory layout, which fused kernels assume."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
