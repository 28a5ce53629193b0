"""Subjects that are quick to make and hide nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
from torch import nn

from retinoscope.core.subject import Subject
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.run.subject import load_subject


@pytest.fixture
def subject_of() -> Callable[..., Subject]:
    """A timm model with all parameters drawn at order one, on cues."""

    def make(name: str, options: dict[str, object] | None = None, **settings: object) -> Subject:
        model: nn.Module = draw_at_order_one(timm.create_model(name, **(options or {}))).eval()
        return load_subject(model, "cues", name=name, **settings)

    return make
