"""Parts put before, behind or around a module that stays what and where it is.

The module keeps its place, its class (its new one is derived from it) and the keys of its
parameters; the parts become its children ``graft_before``, ``graft_after`` and ``graft_around``.
Hooks would not do: they are not part of a model's graph.
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
    """A part that watches over a module's forward pass: it gives a context to run it in."""

    def context(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """What the module runs in; called with the module's own arguments."""
        raise NotImplementedError


class _Grafted:
    """What comes before a module's own class once something was grafted onto it."""

    graft_before: nn.Sequential
    graft_after: nn.Sequential
    graft_around: nn.ModuleList
    graft_takes: int | str
    """In which argument the tensor comes that is changed before."""
    graft_gives: int | str | None
    """Where in the answer the tensor lies that is changed behind; None for the answer itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module between what was grafted onto it."""
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
            # Some modules run all of their children in turn: the parts are none of theirs.
            parts = {name: self._modules.pop(name) for name in _PARTS}  # type: ignore[attr-defined]
            try:
                given = super().forward(*args, **kwargs)  # type: ignore[misc]
            finally:
                self._modules.update(parts)  # type: ignore[attr-defined]
        return _changed(given, self.graft_gives, self.graft_after)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (type(self).__mro__[2],), self.__dict__


def _changed(answer: Any, key: int | str | None, parts: nn.Sequential) -> Any:
    """The answer with what lies at ``key`` changed."""
    if not len(parts):
        return answer
    if key is None:
        return parts(answer)
    if isinstance(key, str):
        changed = copy(answer)
        changed[key] = parts(answer[key])
        return changed
    entries = [parts(entry) if place == key else entry for place, entry in enumerate(answer)]
    return answer._make(entries) if hasattr(answer, "_make") else type(answer)(entries)


@cache
def _grafted(base: type[nn.Module]) -> type[nn.Module]:
    return type(f"Grafted{base.__name__}", (_Grafted, base), {"__module__": base.__module__})


def _blank(base: type[nn.Module]) -> nn.Module:
    kind = _grafted(base)
    return kind.__new__(kind)


def grafted_paths(model: nn.Module) -> list[str]:
    """The modules onto which something was grafted."""
    return [path for path, module in model.named_modules() if isinstance(module, _Grafted)]


def graft(
    module: nn.Module,
    part: nn.Module,
    side: Side,
    takes: int | str = 0,
    gives: int | str | None = None,
) -> None:
    """Put ``part`` onto ``module``: what comes later lies further out.

    Args:
        module: Stays in its place.
        part: What is done to a tensor before or behind it, or an :class:`Around`.
        side: Where it goes.
        takes: In which argument of the module the tensor comes: its position or name.
        gives: Where in the module's answer the tensor lies; None if it is the answer.
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
