"""What every test needs: one thread, and models in which nothing hides."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from retinoscope.models.order_one import draw_at_order_one

torch.set_num_threads(1)
logging.getLogger("torch.export").setLevel(logging.ERROR)


@pytest.fixture
def order_one() -> Callable[..., nn.Module]:
    """Make a timm model with all parameters and statistics drawn at order one, in eval mode."""

    def make(name: str, **options: object) -> nn.Module:
        return draw_at_order_one(timm.create_model(name, **options)).eval()

    return make


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The networks that are exported while the test runs, by the names of their classes."""
    seen: list[str] = []
    export = torch.export.export

    def counted(chooser: nn.Module, *args: object, **options: object) -> object:
        seen.append(type(chooser.model).__name__)
        return export(chooser, *args, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    return seen
