"""What every test needs: one thread, models in which nothing hides, and few exports."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from functools import cache

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read at import; without it, hubs are asked for 47 s

import timm
import torch
from torch import nn

from every_run import EVERY_RUN
from retinoscope import Anatomy, Replay, dissect, replay
from retinoscope.models.order_one import draw_at_order_one

torch.set_num_threads(1)
logging.getLogger("torch.export").setLevel(logging.ERROR)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as proofs what ``every_run.py`` does not keep; a name in it that is gone is an error."""
    found: set[str] = set()
    files = set()
    for item in items:
        test, _, case = item.nodeid.removeprefix("tests/").partition("[")
        files.add(test.partition("::")[0])
        if test in EVERY_RUN:
            found.add(test)
            if not case.startswith(EVERY_RUN[test]) or not EVERY_RUN[test]:
                item.add_marker(pytest.mark.proof)
    gone = [t for t in EVERY_RUN if t.partition("::")[0] in files and t not in found]
    if gone and not any("::" in str(argument) for argument in items[0].config.args):
        raise pytest.UsageError(f"tests/every_run.py names tests that are not there: {gone}")


def pytest_collection_finish() -> None:
    """What was imported stays; an export makes many objects, and few of them in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Else libraries complain at the very end that theirs was not let go."""
    gc.unfreeze()


def _ordered(name: str, **options: object) -> nn.Module:
    return draw_at_order_one(timm.create_model(name, **options)).eval()


@pytest.fixture
def order_one() -> Callable[..., nn.Module]:
    """Make a timm model with all parameters and statistics drawn at order one, in eval mode."""
    return _ordered


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


@pytest.fixture(scope="session")
def taken_apart() -> Callable[..., Anatomy]:
    """The anatomy of a fresh timm model by name, size and options: once in a run for all tests."""

    @cache
    def look(name: str, size: int | tuple[int, int], **options: object) -> Anatomy:
        return dissect(timm.create_model(name, **options), size)

    return look


@pytest.fixture(scope="session")
def replayed() -> Callable[..., tuple[nn.Module, Replay]]:
    """A timm model at order one and its replay, once in a run: for tests that leave both alone."""

    @cache
    def look(name: str, size: int | tuple[int, int], **options: object) -> tuple[nn.Module, Replay]:
        model = _ordered(name, **options)
        return model, replay(model, size)

    return look
