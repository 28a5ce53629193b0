"""Retinoscope: shows how vision backbones work, and builds better ones.

Names are imported on first use, so that ``import retinoscope`` does not import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinoscope.anatomy.dissect import dissect
    from retinoscope.anatomy.replay import Replay, State, replay
    from retinoscope.core.anatomy import Anatomy
    from retinoscope.core.context import Context
    from retinoscope.core.errors import RetinoscopeError
    from retinoscope.core.probe import Needs, Piece, Probe, Watcher
    from retinoscope.core.result import Result
    from retinoscope.core.sight import Group, Sight
    from retinoscope.core.subject import Subject
    from retinoscope.core.surgery import Surgery
    from retinoscope.core.unit import Grid, Kind, Unit
    from retinoscope.models.build import BuiltModel, build_model
    from retinoscope.models.load import LoadedModel, load_model
    from retinoscope.plots import plot
    from retinoscope.report.build import build_report
    from retinoscope.run.run import Run, measure
    from retinoscope.run.subject import load_subject
    from retinoscope.surgery.operate import operate
    from retinoscope.train.recipe import Recipe
    from retinoscope.train.train import train_model
    from retinoscope.train.training import Trained
    from retinoscope.workflows.advise import Advice, advise
    from retinoscope.workflows.examine import Examination, examine

__version__ = "0.1.0"

_HOMES = {
    "Advice": "workflows.advise",
    "Anatomy": "core.anatomy",
    "BuiltModel": "models.build",
    "Context": "core.context",
    "Examination": "workflows.examine",
    "Grid": "core.unit",
    "Group": "core.sight",
    "Kind": "core.unit",
    "LoadedModel": "models.load",
    "Needs": "core.probe",
    "Piece": "core.probe",
    "Probe": "core.probe",
    "Recipe": "train.recipe",
    "Replay": "anatomy.replay",
    "Result": "core.result",
    "RetinoscopeError": "core.errors",
    "Run": "run.run",
    "Sight": "core.sight",
    "State": "anatomy.replay",
    "Subject": "core.subject",
    "Surgery": "core.surgery",
    "Trained": "train.training",
    "Unit": "core.unit",
    "Watcher": "core.probe",
    "advise": "workflows.advise",
    "build_model": "models.build",
    "build_report": "report.build",
    "dissect": "anatomy.dissect",
    "examine": "workflows.examine",
    "load_model": "models.load",
    "load_subject": "run.subject",
    "measure": "run.run",
    "operate": "surgery.operate",
    "plot": "plots",
    "replay": "anatomy.replay",
    "train_model": "train.train",
}

__all__ = [
    "Advice",
    "Anatomy",
    "BuiltModel",
    "Context",
    "Examination",
    "Grid",
    "Group",
    "Kind",
    "LoadedModel",
    "Needs",
    "Piece",
    "Probe",
    "Recipe",
    "Replay",
    "Result",
    "RetinoscopeError",
    "Run",
    "Sight",
    "State",
    "Subject",
    "Surgery",
    "Trained",
    "Unit",
    "Watcher",
    "advise",
    "build_model",
    "build_report",
    "dissect",
    "examine",
    "load_model",
    "load_subject",
    "measure",
    "operate",
    "plot",
    "replay",
    "train_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'retinoscope' has no attribute {name!r}")
    if "IPython" in sys.modules and "retinoscope.plots.notebook" not in sys.modules:
        import_module("retinoscope.plots.notebook").register()  # shows results in notebooks
    return getattr(import_module(f"retinoscope.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
