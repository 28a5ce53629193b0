"""How the modules of a model are called: with which arguments, and with which outputs.

The graph shows which tensor a module takes and returns. Only a call shows which argument it is, and
which part of the output. Two passes over different images show what depends on the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from retinoscope.anatomy.example import as_batch
from retinoscope.anatomy.graph.rest import at_rest

Key = int | str | None
"""A position, a name, or None for the object itself."""


@dataclass(frozen=True)
class Seen:
    """A tensor in a call: its position, identity, shape, and a digest of its values."""

    key: Key
    identity: int
    shape: tuple[int, ...]
    sum: float


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    takes: tuple[Seen, ...]
    """Tensors among its arguments."""
    arguments: int
    """The total number of arguments."""
    gives: tuple[Seen, ...]
    """Tensors in its output."""

    def depending(self, other: Call) -> Call:
        """The tensors that differ between two passes; the same tensor counts once."""
        takes, gives = (
            {one.identity: one for one, two in zip(mine, theirs, strict=True) if one.sum != two.sum}
            for mine, theirs in ((self.takes, other.takes), (self.gives, other.gives))
        )
        first = {seen.identity: seen for seen in reversed(self.takes) if seen.identity in takes}
        return Call(tuple(first.values()), self.arguments, tuple(gives.values()))


def copied(model: nn.Module) -> nn.Module:
    """A deep copy of a model, including computed tensors, which ``deepcopy`` alone refuses."""
    held = [value for module in model.modules() for value in vars(module).values()]
    held += [inner for value in held if isinstance(value, dict) for inner in value.values()]
    computed = [value for value in held if isinstance(value, Tensor) and not value.is_leaf]
    return deepcopy(model, {id(value): value.detach().clone() for value in computed})


def shaken(patient: nn.Module) -> nn.Module:
    """A copy with noise on all weights, so that weights of zero do not hide a dependency."""
    noisy = copied(patient).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in noisy.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(noise, alpha=0.02)
    return noisy


def observe(model: nn.Module, size: tuple[int, ...]) -> dict[str, Call]:
    """The first call of each module, limited to tensors that depend on the image."""
    model, like = shaken(model), as_batch(model, (size[0], size[1]))
    passes = []
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        passes.append(_watch(model, torch.randn(like.shape, generator=generator).to(like)))
    return {
        path: call.depending(passes[1][path])
        for path, call in passes[0].items()
        if path in passes[1] and _alike(call, passes[1][path])
    }


def _watch(model: nn.Module, images: Tensor) -> dict[str, Call]:
    calls: dict[str, Call] = {}

    def note(
        path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any
    ) -> None:
        given = tuple(_seen([*enumerate(args), *kwargs.items()]))
        calls.setdefault(path, Call(given, len(args) + len(kwargs), tuple(_answer(answer))))

    with at_rest(model), torch.no_grad():  # without hooks, except those that compute weights
        hooks = [
            module.register_forward_hook(partial(note, path), with_kwargs=True)
            for path, module in model.named_modules()
        ]
        model(images)
        for hook in hooks:
            hook.remove()
    return calls


def _seen(entries: list[tuple[Key, Any]]) -> Iterator[Seen]:
    for key, value in entries:
        if isinstance(value, Tensor):
            total = float(value.detach().double().nan_to_num().sum())
            yield Seen(key, id(value), tuple(value.shape), total)


def _answer(answer: Any) -> Iterator[Seen]:
    if isinstance(answer, Tensor):
        return _seen([(None, answer)])
    if isinstance(answer, Mapping):
        return _seen([(str(key), value) for key, value in answer.items()])
    return _seen(list(enumerate(answer)) if isinstance(answer, list | tuple) else [])


def _alike(one: Call, two: Call) -> bool:
    return len(one.takes) == len(two.takes) and len(one.gives) == len(two.gives)
