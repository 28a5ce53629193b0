"""Caches the latest dissections, as long as their models exist and do not change.

An export takes seconds. Surgeries use the graph that is already known, before and after the change,
unless the model has changed since. Weights may change, because graphs read the model's own tensors.
Only code that asks for a cached dissection gets one: ``dissect`` and ``replay`` always export
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import Tensor, nn

if TYPE_CHECKING:
    from retinoscope.anatomy.dissect import Dissection

_LAST = 4
"""Number of cached dissections: a model before and after a surgery, and one more of each."""
_DEEP = 3
"""How deep to look into containers and other objects of a module."""
_STORES = ("_parameters", "_buffers")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

_kept: list[tuple[ref[nn.Module], Any, Dissection]] = []


def remember(model: nn.Module, dissection: Dissection) -> None:
    """Cache the dissection of a model in its current state, as long as the model exists."""
    _forget(model)
    _kept.append((ref(model, _forget_dead), _state(model), dissection))
    del _kept[:-_LAST]


def recall(model: nn.Module, image: tuple[int, ...], name: str) -> Dissection | None:
    """The cached dissection of this model, if unchanged, for images (C, H, W); else None."""
    for held, state, found in _kept:
        if held() is model and found.anatomy.image == image and state == _state(model):
            return replace(found, anatomy=replace(found.anatomy, model=name))
    return None


def _forget(model: nn.Module) -> None:
    _kept[:] = [entry for entry in _kept if entry[0]() is not model]


def _forget_dead(dead: ref[nn.Module]) -> None:
    _kept[:] = [entry for entry in _kept if entry[0] is not dead]


class _Same:
    """Compares by the identity of an object, without keeping it alive."""

    def __init__(self, thing: Any) -> None:
        self._held = ref(thing)

    def __eq__(self, other: object) -> bool:
        mine = self._held()
        return mine is not None and isinstance(other, _Same) and mine is other._held()

    __hash__ = None  # type: ignore[assignment]


def _state(model: nn.Module) -> list[Any]:
    """Everything that the graph of a model may depend on: modules, their content and code."""
    return [
        (
            path,
            type(module),
            type(module).forward,
            [(key, _described(value, key in _STORES)) for key, value in vars(module).items()],
        )
        for path, module in model.named_modules(remove_duplicate=False)
    ]


def _described(thing: Any, live: bool = False, deep: int = _DEEP) -> Any:
    """A description that is equal only as long as ``thing`` and its content are the same."""
    if isinstance(thing, _PLAIN):
        return type(thing), thing
    if isinstance(thing, Tensor):
        # The graph reads parameters and buffers when it runs, but may contain the values of other
        # tensors.
        version = None if live or thing.is_inference() else thing._version
        return _Same(thing), tuple(thing.shape), thing.dtype, thing.device, version
    if deep and isinstance(thing, Mapping):
        return [(key, _described(value, live, deep - 1)) for key, value in thing.items()]
    if deep and isinstance(thing, list | tuple | set | frozenset):
        return type(thing), [_described(value, live, deep - 1) for value in thing]
    try:
        itself = _Same(thing)
    except TypeError:  # it cannot be weakly referenced
        itself = id(thing)
    if isinstance(thing, nn.Module | type) or not (deep and hasattr(thing, "__dict__")):
        return itself
    return itself, _described(vars(thing), live, deep - 1)  # for example a configuration
