"""Finds the tensor of a model's output that contains the logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from retinoscope.core.errors import NotABackbone, WrongOutput


def choose_logits(answer: Any, output: str | None = None) -> Tensor:
    """The tensor in ``answer`` that contains the logits.

    A tensor is returned unchanged. In a dict, tuple or ModelOutput, the entry ``output`` is used;
    if it is None, ``logits``, or the only entry of shape (N, K), or the only tensor.

    Example:
        >>> import torch
        >>> choose_logits({"loss": torch.zeros(()), "logits": torch.ones(1, 2)})
        tensor([[1., 1.]])
    """
    if isinstance(answer, Tensor):
        return answer
    entries = dict(_entries(answer))
    if not entries:
        raise NotABackbone(
            f"The model returns {type(answer).__name__}, which contains no tensor. A backbone "
            "must return a tensor for a batch of images."
        )
    shapes = ", ".join(f"{name} ({_sizes(entry)})" for name, entry in entries.items())
    if output is not None:
        if output in entries:
            return entries[output]
        raise WrongOutput(f"The model's output has no entry {output!r}. It has: {shapes}.")
    tables = [entry for entry in entries.values() if entry.ndim == 2]
    for candidates in (
        [entries["logits"]] if "logits" in entries else [],
        tables,
        [*entries.values()],
    ):
        if len(candidates) == 1:
            return candidates[0]
    raise WrongOutput(
        f"The model returns several tensors, and it is not clear which are the logits: {shapes}. "
        f"Select one: output={next(iter(entries))!r} in Python, --output {next(iter(entries))} on "
        "the command line."
    )


def _sizes(entry: Tensor) -> str:
    """A shape in which the number of images is written as N."""
    return ", ".join(["N", *map(str, entry.shape[1:])][: entry.ndim])


def _entries(answer: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(answer, Tensor):
        yield prefix, answer
    elif isinstance(answer, Mapping):
        for name, entry in answer.items():
            yield from _entries(entry, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(answer, Sequence) and not isinstance(answer, str):
        for index, entry in enumerate(answer):
            yield from _entries(entry, f"{prefix}.{index}" if prefix else str(index))
