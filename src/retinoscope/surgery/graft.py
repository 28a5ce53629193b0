"""Parts put before, behind or around a module that stays what and where it is.

The module keeps its place, its class (its new one is derived from it) and the keys of its
parameters; the parts become its children ``graft_before``, ``graft_after`` and ``graft_around``.
Hooks would not do: they are not part of a model's graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any, Literal

from torch import Tensor, nn

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module between what was grafted onto it."""
        if args or kwargs:
            first = next(iter((*args, *kwargs.values())))
            changed = self.graft_before(first)
            # Attention may get the same tensor three times: as queries, keys and values.
            args = tuple(changed if given is first else given for given in args)
            kwargs = {name: changed if v is first else v for name, v in kwargs.items()}
        with ExitStack() as contexts:
            for part in self.graft_around:
                contexts.enter_context(part.context(*args, **kwargs))  # type: ignore[operator]
            # Some modules run all of their children in turn: the parts are none of theirs.
            parts = {name: self._modules.pop(name) for name in _PARTS}  # type: ignore[attr-defined]
            try:
                given = super().forward(*args, **kwargs)  # type: ignore[misc]
            finally:
                self._modules.update(parts)  # type: ignore[attr-defined]
        if not len(self.graft_after):
            return given
        if isinstance(given, Tensor):
            return self.graft_after(given)
        changed = (self.graft_after(given[0]), *given[1:])
        return given._make(changed) if hasattr(given, "_make") else type(given)(changed)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (type(self).__mro__[2],), self.__dict__


@cache
def _grafted(base: type[nn.Module]) -> type[nn.Module]:
    return type(f"Grafted{base.__name__}", (_Grafted, base), {"__module__": base.__module__})


def _blank(base: type[nn.Module]) -> nn.Module:
    kind = _grafted(base)
    return kind.__new__(kind)


def grafted_paths(model: nn.Module) -> list[str]:
    """The modules onto which something was grafted."""
    return [path for path, module in model.named_modules() if isinstance(module, _Grafted)]


def graft(module: nn.Module, part: nn.Module, side: Side) -> None:
    """Put ``part`` onto ``module``: what comes later lies further out."""
    if not isinstance(module, _Grafted):
        module.__class__ = _grafted(type(module))
        module.graft_before, module.graft_after = nn.Sequential(), nn.Sequential()
        module.graft_around = nn.ModuleList()
        for own in (module.graft_before, module.graft_after, module.graft_around):
            own.train(module.training)
    place: Callable[[nn.Module], Any] = {
        "before": lambda p: module.graft_before.insert(0, p),  # type: ignore[operator,union-attr]
        "after": module.graft_after.append,  # type: ignore[dict-item,union-attr]
        "around": module.graft_around.append,  # type: ignore[dict-item,union-attr]
    }[side]
    place(part.train(module.training))
