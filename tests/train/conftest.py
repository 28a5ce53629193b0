"""Recipes that are done in a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinoscope.train.recipe import Recipe, changed

TINY = Path(__file__).parent / "tiny.py"


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.steps: list[int] = []
        self.rows: list[Any] = []
        self.said: list[str] = []
        self.ended = 0

    def begin(self, started: Any) -> None:
        self.started.append(started)

    def step(self, step: int) -> None:
        self.steps.append(step)

    def epoch(self, row: Any) -> None:
        self.rows.append(dict(row))

    def say(self, text: str) -> None:
        self.said.append(text)

    def end(self) -> None:
        self.ended += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def quick() -> Callable[..., Recipe]:
    """A recipe of 2 + 1 epochs of 4 steps on 80 images of cues; settings by name."""

    def make(network: str = "build:img_size=32", **settings: Any) -> Recipe:
        base = Recipe(
            model=f"{TINY}:{network}", data="cues", epochs=2, warmup=1, batch=20,
            fraction=80 / 50_000, scored=40, lr=0.01,
        )  # fmt: skip
        return changed(base, settings)

    return make
