"""Puts a model at rest: in eval mode and without hooks, and restores it afterwards."""

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
    """A context with eval mode, without gradients and hooks; it restores everything on exit.

    A hook would see the fake tensors of export instead of images. Hooks of ``torch.nn.utils``
    (weight norm and similar) compute weights, so they stay.
    """
    before = {module: dict(vars(module)) for module in model.modules()}
    contents = [(v, v.copy()) for held in before.values() for v in held.values() if _is_store(v)]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    try:
        model.train().eval()  # some models drop their caches when they change mode
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
    """Suppress the graph that torch prints on failure; our own error has the relevant part."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            # Attributes that the model assigns while it runs are restored: see at_rest.
            warnings.filterwarnings("ignore", message=".*assigned during export")
            yield
    finally:
        logging.disable(before)


@contextmanager
def unlocated() -> Iterator[None]:
    """Do not record the source line of every operation: it is not used, and takes time.

    It takes a tenth of an export, and a quarter if the call stack is deep.
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
