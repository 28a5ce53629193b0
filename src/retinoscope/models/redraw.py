"""Random weights for the user's own networks whose code does not draw them from the seed.

A function that loads weights or sets its own seed returns the same weights for every seed, and a
module has the weights that it has. In these cases each module redraws its parameters with its own
``reset_parameters``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from retinoscope.core.errors import WeightsUnavailable
from retinoscope.core.wording import listed


class WeightsFixed(WeightsUnavailable):
    """Random weights were requested from a network whose weights cannot be redrawn."""


def drawn_by_seed(name: str, make: Callable[[], nn.Module]) -> tuple[nn.Module, str]:
    """Return the network with random weights from torch's generator, and how they were drawn.

    Args:
        name: Name of the network in error messages.
        make: The user's function.
    """
    before = torch.get_rng_state()
    model = make()
    after = torch.get_rng_state()
    torch.manual_seed(torch.initial_seed() ^ 1)
    fixed = _equal(model, make())
    torch.set_rng_state(after)
    if not fixed:
        return model, ""
    _check(model, fixed, name)
    torch.set_rng_state(before)
    _draw(model)
    return model, "drawn anew by each module's reset_parameters"


def redrawn(model: nn.Module, name: str, seed: int) -> nn.Module:
    """A copy of a network with random weights; raises if some weights cannot be drawn.

    Args:
        model: The network; it is not modified.
        name: Its name in error messages.
        seed: Random seed of the weights. The state of torch's global generator is kept.
    """
    if stuck := _stuck(model, (path for path, _ in model.named_parameters())):
        raise WeightsFixed(
            f"these parts of {name} hold parameters without a reset_parameters method to draw "
            f"them anew: {listed(stuck)}. Add that method, load the model by its name, or pass the "
            "network with random weights: load_subject(…, others={'untrained': module})"
        )
    copy = deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _draw(copy)
    return copy


def _draw(model: nn.Module) -> None:
    for module in model.modules():
        if (draw := _reset(module)) is not None:
            draw()


def _equal(model: nn.Module, twin: nn.Module) -> list[str]:
    """Return the parameters that are the same for another seed, although they are not constant."""
    other = dict(twin.named_parameters())
    return [
        name
        for name, parameter in model.named_parameters()
        if name in other
        and not is_lazy(parameter)
        and parameter.numel() > 1
        and bool((parameter != parameter.flatten()[0]).any())
        and torch.equal(parameter, other[name])
    ]


def _check(model: nn.Module, fixed: Sequence[str], name: str) -> None:
    """Raise an error if some of these parameters cannot be redrawn."""
    stuck = _stuck(model, fixed)
    if not stuck:
        return
    raise WeightsFixed(
        f"Random weights were asked for (--untrained, in Python pretrained=False), but {name} "
        "gives the same weights for every seed, and these hold parameters without a "
        f"reset_parameters method to draw them anew: {listed(stuck)}. Give the function an "
        "argument pretrained and load weights only where it is True, or ask for its own weights: "
        "without --untrained, in a training with pretrained=True."
    )


def _stuck(model: nn.Module, parameters: Iterable[str]) -> list[str]:
    """The modules that hold some of these parameters and cannot redraw them, in words."""
    owners = dict.fromkeys(path.rpartition(".")[0] for path in parameters)
    modules = {path: model.get_submodule(path) for path in owners}
    return [f"{path or 'the network'} ({type(module).__name__})"
            for path, module in modules.items() if _reset(module) is None]  # fmt: skip


def _reset(module: nn.Module) -> Callable[[], object] | None:
    """Return the method that draws a module's parameters; in some modules it is private."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(found := getattr(module, name, None)):
            return found
    return None
