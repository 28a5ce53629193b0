"""Makes networks twice differentiable, and their derivatives fast."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from retinoscope.core.errors import NotApplicable

_NO_DERIVATIVE = re.compile(
    r"(?:derivative for|double backwards? on) '?([\w:]+)'? (?:is )?not (?:implemented|supported)"
)
_CUT = "torch::autograd::Error"
"""The name that autograd gives to the end of a graph that must not be differentiated."""

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_CONVOLUTION = {"input": None, "weight": None, "bias": None, "stride": 1, "padding": 0,
                "dilation": 1, "groups": 1}  # fmt: skip
_NORM = {"input": None, "running_mean": None, "running_var": None, "weight": None, "bias": None,
         "training": False, "momentum": 0.1, "eps": 1e-5}  # fmt: skip
"""Arguments in their order, with their defaults."""


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """A context in which a network can be differentiated twice; everything is restored after it.

    Fused attention has no second derivative, so it is computed step by step. Batch norm in eval
    mode is replaced by a scale and a shift, applied to the kernel of the preceding convolution if
    there is one, because its own second derivative is slower.
    """
    with sdpa_kernel(SDPBackend.MATH), _PlainNorms(), explained():
        yield


@contextmanager
def explained() -> Iterator[None]:
    """A context that converts errors about missing derivatives into readable messages."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if (found := _NO_DERIVATIVE.search(str(error))) is None:
            raise
        raise _lacking(found[1]) from error


def check_twice(gradients: Iterable[Tensor | None]) -> None:
    """Raise if an operation of the network cannot be differentiated twice.

    Functions marked ``once_differentiable`` end the graph of the gradient. Autograd raises only if
    it visits such a function, which it does not on the way to the parameters: it would silently
    omit the contributions that pass through them.
    """
    waiting = [g.grad_fn for g in gradients if g is not None]
    nodes: set[Any] = set()
    while waiting:
        if (node := waiting.pop()) is not None and node not in nodes:
            nodes.add(node)
            waiting += [before for before, _ in node.next_functions]
    if any(node.name() == _CUT for node in nodes):
        functions = {node._forward_cls for node in nodes if hasattr(node, "_forward_cls")}
        marked = sorted(f.__name__ for f in functions if hasattr(f.backward, "__wrapped__"))
        raise _lacking(", ".join(marked) or "a function that is marked once_differentiable")


def _lacking(operation: str) -> NotApplicable:
    return NotApplicable(
        f"needs second derivatives; there is none for {operation}, which the network uses. "
        "Rewrite it with operations that have one"
    )


class _PlainNorms(TorchFunctionMode):
    """Batch norm with fixed statistics as a scale and a shift."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Tensor, int, dict[str, Any]] | None = None
        """The output of the last convolution, its version counter, and its arguments."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            norm = _named(_NORM, args, kwargs)
            if not norm["training"]:
                return self._normed(norm)
        found = func(*args, **kwargs)
        if func in _CONVOLUTIONS:
            self._last = found, found._version, {"func": func} | _named(_CONVOLUTION, args, kwargs)
        return found

    def _normed(self, norm: dict[str, Any]) -> Tensor:
        scale = torch.rsqrt(norm["running_var"] + norm["eps"])
        scale = scale if norm["weight"] is None else scale * norm["weight"]
        shift = -norm["running_mean"] * scale
        shift = shift if norm["bias"] is None else norm["bias"] + shift
        last, self._last = self._last, None
        if last is not None and last[0] is norm["input"] and last[0]._version == last[1]:
            return _scaled_convolution(last[2], scale, shift)
        shape = (1, -1, *[1] * (norm["input"].ndim - 2))
        return torch.addcmul(shift.view(shape), norm["input"], scale.view(shape))


def _named(known: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return known | dict(zip(known, args, strict=False)) | kwargs


def _scaled_convolution(called: dict[str, Any], scale: Tensor, shift: Tensor) -> Tensor:
    """Repeat a convolution with the scale in its kernel: kernels are smaller than maps."""
    weight, bias = called["weight"], called["bias"]
    kernel = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    bias = shift if bias is None else shift + bias * scale
    rest = {k: v for k, v in called.items() if k not in ("func", "weight", "bias")}
    return called["func"](**rest, weight=kernel, bias=bias)
