"""Retinoscope: shows how vision backbones work, and builds better ones.

Names are imported when they are first used, so that ``import retinoscope`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinoscope.anatomy.dissect import dissect
    from retinoscope.anatomy.replay import Replay, State, replay
    from retinoscope.core.anatomy import Anatomy
    from retinoscope.core.errors import RetinoscopeError
    from retinoscope.core.unit import Grid, Kind, Unit
    from retinoscope.models.load import LoadedModel, load_model

__version__ = "0.1.0"

_HOMES = {
    "Anatomy": "core.anatomy",
    "Grid": "core.unit",
    "Kind": "core.unit",
    "LoadedModel": "models.load",
    "Replay": "anatomy.replay",
    "RetinoscopeError": "core.errors",
    "State": "anatomy.replay",
    "Unit": "core.unit",
    "dissect": "anatomy.dissect",
    "load_model": "models.load",
    "replay": "anatomy.replay",
}

__all__ = [
    "Anatomy",
    "Grid",
    "Kind",
    "LoadedModel",
    "Replay",
    "RetinoscopeError",
    "State",
    "Unit",
    "dissect",
    "load_model",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'retinoscope' has no attribute {name!r}")
    return getattr(import_module(f"retinoscope.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
