"""Adds parts before, after or around a module without replacing it.

The module keeps its path, its class (the new one is derived from it) and the keys of its
parameters; the parts become its children ``graft_before``, ``graft_after`` and ``graft_around``.
Hooks are not sufficient, because they are not part of a model's graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from functools import cache
from typing import Any, Literal

from torch import nn

Side = Literal["before", "after", "around"]


_PARTS = ("graft_before", "graft_after", "graft_around")


class Around(nn.Module):
    """A part that surrounds a module's forward pass with a context."""

    def context(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """The context for the forward pass; called with the module's own arguments."""
        raise NotImplementedError


class _Grafted:
    """The base class that precedes a module's own class once a part was added."""

    graft_before: nn.Sequential
    graft_after: nn.Sequential
    graft_around: nn.ModuleList
    graft_takes: int | str
    """The argument that contains the tensor to change before the module."""
    graft_gives: int | str | None
    """The part of the output that contains the tensor to change after it; None for the output
    itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with the added parts."""
        if len(self.graft_before):
            key = self.graft_takes
            state = kwargs[key] if isinstance(key, str) else args[key]
            changed = self.graft_before(state)
            # Attention may get the same tensor three times: as queries, keys and values.
            args = tuple(changed if given is state else given for given in args)
            kwargs = {name: changed if v is state else v for name, v in kwargs.items()}
        with ExitStack() as contexts:
            for part in self.graft_around:
                contexts.enter_context(part.context(*args, **kwargs))  # type: ignore[operator]
            # Some modules run all of their children in order: hide the added parts from them.
            parts = {name: self._modules.pop(name) for name in _PARTS}  # type: ignore[attr-defined]
            try:
                given = super().forward(*args, **kwargs)  # type: ignore[misc]
            finally:
                self._modules.update(parts)  # type: ignore[attr-defined]
        return _changed(given, self.graft_gives, self.graft_after)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (type(self).__mro__[2],), self.__dict__


def _changed(answer: Any, key: int | str | None, parts: nn.Sequential) -> Any:
    """The output with the part at ``key`` changed."""
    if not len(parts):
        return answer
    if key is None:
        return parts(answer)
    if isinstance(key, str):
        changed = copy(answer)
        changed[key] = parts(answer[key])
        return changed
    entries = [parts(entry) if index == key else entry for index, entry in enumerate(answer)]
    return answer._make(entries) if hasattr(answer, "_make") else type(answer)(entries)


@cache
def _grafted(base: type[nn.Module]) -> type[nn.Module]:
    return type(f"Grafted{base.__name__}", (_Grafted, base), {"__module__": base.__module__})


def _blank(base: type[nn.Module]) -> nn.Module:
    kind = _grafted(base)
    return kind.__new__(kind)


def grafted_paths(model: nn.Module) -> list[str]:
    """The paths of modules to which a part was added."""
    return [path for path, module in model.named_modules() if isinstance(module, _Grafted)]


def graft(
    module: nn.Module,
    part: nn.Module,
    side: Side,
    takes: int | str = 0,
    gives: int | str | None = None,
) -> None:
    """Add ``part`` to ``module``; parts that are added later are further outside.

    Args:
        module: The module, which keeps its path.
        part: A change of a tensor before or after it, or an :class:`Around`.
        side: Where to add it.
        takes: The argument of the module that contains the tensor: its position or name.
        gives: The part of the module's output that contains the tensor; None for the output itself.
    """
    if not isinstance(module, _Grafted):
        module.__class__ = _grafted(type(module))
        module.graft_before, module.graft_after = nn.Sequential(), nn.Sequential()
        module.graft_around = nn.ModuleList()
        vars(module).update(graft_takes=0, graft_gives=None)
        for own in (module.graft_before, module.graft_after, module.graft_around):
            own.train(module.training)
    place: Callable[[nn.Module], Any] = {
        "before": lambda p: module.graft_before.insert(0, p),  # type: ignore[operator,union-attr]
        "after": module.graft_after.append,  # type: ignore[dict-item,union-attr]
        "around": module.graft_around.append,  # type: ignore[dict-item,union-attr]
    }[side]
    if side == "before":
        vars(module).update(graft_takes=takes)
    if side == "after":
        vars(module).update(graft_gives=gives)
    place(part.train(module.training))
