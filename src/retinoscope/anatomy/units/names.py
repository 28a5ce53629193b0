"""Names units and finds their modules, from the paths that export recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

Paths = Mapping[fx.Node, tuple[str, ...]]


def common_path(nodes: Iterable[fx.Node], paths: Paths) -> str:
    """The deepest module path that contains all of ``nodes``; empty if there is none."""
    stacks = [paths[node] for node in nodes]
    shared = (
        [path for path in stacks[0] if all(path in stack for stack in stacks)] if stacks else []
    )
    return shared[-1] if shared else ""


def unit_name(nodes: Sequence[fx.Node], paths: Paths, fallback: str) -> str:
    """The common path of the deciding nodes, or that of the first node that has one."""
    alone = (paths[node][-1] for node in nodes if paths[node])
    return common_path(nodes, paths) or next(alone, fallback)


class Unique:
    """Makes names unique by appending ``#2``, ``#3``… to those that are taken."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        """The name itself the first time, a numbered one after that."""
        self.taken[name] += 1
        return name if self.taken[name] == 1 else f"{name}#{self.taken[name]}"


def output_module(
    node: fx.Node, within: set[fx.Node], outside: fx.Node | None, paths: Paths
) -> str | None:
    """The outermost module whose output is ``node`` and whose operations are all ``within``.

    Args:
        node: The branch of a residual unit, or the state of another.
        within: The unit's operations.
        outside: The sum at the unit's exit, which a branch's module must not contain.
        paths: Module paths of every operation that the logits are computed from.
    """
    for path in paths[node]:
        if outside is not None and path in paths[outside]:
            continue
        inside = [n for n in paths if path in paths[n]]
        if inside[-1] is node and within.issuperset(inside):
            return path
    return None
