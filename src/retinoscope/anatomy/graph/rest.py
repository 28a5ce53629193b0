"""A model at rest: in eval mode, without observers, and afterwards exactly as it was."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import torch
from torch import nn
from torch.fx import config

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients and no observers for the duration; everything as before afterwards.

    A hook would see the stand-ins that export works with instead of images. Those of
    ``torch.nn.utils`` (weight norm and its like) compute weights, so they stay.
    """
    before = {module: dict(vars(module)) for module in model.modules()}
    contents = [(v, v.copy()) for held in before.values() for v in held.values() if _is_store(v)]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    try:
        model.train().eval()  # some models drop what they have cached when they change mode
        for module, held in before.items():
            for name in _HOOKS:
                kept = {i: h for i, h in held[name].items() if _computes_weights(h)}
                module.__dict__[name] = type(held[name])(kept)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, held in before.items():  # some also cache tensors while they run
            module.__dict__.clear()
            module.__dict__.update(held)
        for store, content in contents:
            store.clear()
            store.extend(content) if isinstance(store, list) else store.update(content)
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the graph that torch prints where it fails: our own error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            # What the model assigns to itself while it runs is taken back: see at_rest.
            warnings.filterwarnings("ignore", message=".*assigned during export")
            yield
    finally:
        logging.disable(before)


@contextmanager
def unlocated() -> Iterator[None]:
    """Without the line of code behind every operation: nobody reads it, and it takes its time.

    A tenth of an export; a quarter where the call comes from deep inside other calls.
    """
    before = getattr(config, "do_not_emit_stack_traces", False)
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def _is_store(value: Any) -> bool:
    return isinstance(value, dict | list | set)


def _computes_weights(hook: Any) -> bool:
    return type(hook).__module__.startswith("torch.nn")
