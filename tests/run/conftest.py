"""A tiny subject, by name, so that every engine can use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retinoscope.core.subject import Subject
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY


@pytest.fixture
def tiny() -> Callable[..., Subject]:
    """The network of ``tiny.py`` on cues of 16 × 16 pixels."""

    def make(**settings: object) -> Subject:
        return load_subject(TINY, "cues", **{"images": 300} | settings)

    return make
