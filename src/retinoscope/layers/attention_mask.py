"""Masks attention that other code computes.

Attention is usually a function call inside a module, not a separate module. While such a module
runs, its calls of ``softmax`` and of torch's fused attention are intercepted and masked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from retinoscope.core.errors import WrongInput

_SOFTMAX = {
    F.softmax,
    torch.softmax,
    torch.special.softmax,
    Tensor.softmax,
    torch.ops.aten.softmax.int,
    torch.ops.aten._softmax.default,
}


class AttentionMask(nn.Module):
    """Hides keys from queries in the attention of a module; see :meth:`context`.

    It is not part of a state dict, because it follows from the map and the window.

    Args:
        hidden: True if a query must not see a key, (queries, keys).
        calls: The number of calls to mask in each forward pass of the module.
        query_dim: The dimension of queries in the logits, counted from the last (−2).
        key_dim: The dimension of keys in the logits, counted from the last (−1).
        what: The map and the window, for error messages.
    """

    hidden: Tensor

    def __init__(
        self, hidden: Tensor, calls: int = 1, query_dim: int = -2, key_dim: int = -1, what: str = ""
    ) -> None:
        super().__init__()
        self.register_buffer("hidden", hidden, persistent=False)
        self.calls, self.query_dim, self.key_dim, self.what = calls, query_dim, key_dim, what
        self.hides = bool(hidden.any())
        """If nothing is hidden, calls are only counted."""

    def context(self, *args: Any, **kwargs: Any) -> TorchFunctionMode:
        """The context to run the module in; on exit, it raises if not all calls were masked."""
        return _Masking(self)

    def extra_repr(self) -> str:
        """The map and the window of the mask."""
        return self.what


class _Masking(TorchFunctionMode):
    """Intercepts attention while it is active."""

    def __init__(self, mask: AttentionMask) -> None:
        super().__init__()
        self.mask = mask
        self.masked = 0
        self.others: list[tuple[int, ...]] = []
        """Numbers of queries and keys of attention that do not match the mask."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._fused(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        if func in _SOFTMAX:
            return self._softmax(func, *args, **kwargs)
        return func(*args, **kwargs)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self.masked != self.mask.calls:
            queries, keys = self.mask.hidden.shape
            others = ", ".join(f"{q} queries and {k} keys" for q, k in self.others)
            met = f"met {others}" if others else f"such calls occurred {self.masked} times"
            raise WrongInput(
                f"This attention was masked for {queries} queries and {keys} keys, "
                f"{self.mask.calls} times each time it runs ({self.mask.what}), but {met}. Apply "
                "the surgery again, with an anatomy for images of this size."
            )

    def _fits(self, queries: int, keys: int) -> bool:
        if (queries, keys) != tuple(self.mask.hidden.shape):
            self.others.append((int(queries), int(keys)))
            return False
        self.masked += 1
        return self.mask.hides

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **rest: Any,
    ) -> Tensor:
        if self._fits(query.shape[-2], key.shape[-2]):
            _refuse_causal(is_causal)
            attn_mask = _joined(attn_mask, self.mask.hidden, seen_is_true=True)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **rest
        )

    def _multi_head(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Called with tokens first; its boolean masks are true where a query must not see a key.
        if self._fits(query.shape[0], key.shape[0]):
            _refuse_causal(kwargs.get("is_causal", False))
            given = kwargs.get("attn_mask")
            kwargs["attn_mask"] = _joined(given, self.mask.hidden, seen_is_true=False)
        return F.multi_head_attention_forward(query, key, *args, **kwargs)

    def _softmax(self, func: Any, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dim = kwargs.get("dim", args[0] if args else None)
        query_dim, key_dim = self.mask.query_dim, self.mask.key_dim
        fits = (
            dim is not None
            and logits.ndim >= -min(query_dim, key_dim)
            and dim - logits.ndim * (dim >= 0) == key_dim
            and self._fits(logits.shape[query_dim], logits.shape[key_dim])
        )
        if fits:
            hidden = along(self.mask.hidden, query_dim, key_dim)
            logits = logits.masked_fill(hidden, -torch.inf)
        return func(logits, *args, **kwargs)


def along(pairs: Tensor, query_dim: int, key_dim: int) -> Tensor:
    """A (queries, keys) tensor, reshaped so that it broadcasts along these dimensions.

    Example:
        >>> along(torch.ones(2, 3), query_dim=-2, key_dim=-4).shape
        torch.Size([3, 1, 2, 1])
    """
    shape = [1] * -min(query_dim, key_dim)
    shape[query_dim], shape[key_dim] = pairs.shape
    return (pairs if query_dim < key_dim else pairs.mT).reshape(shape)


def _joined(given: Tensor | None, hidden: Tensor, seen_is_true: bool) -> Tensor:
    """The given mask combined with ours, in the format of the given one."""
    if given is None:
        return ~hidden if seen_is_true else hidden
    if given.dtype is torch.bool:
        return given & ~hidden if seen_is_true else given | hidden
    return given.masked_fill(hidden, -torch.inf)


def _refuse_causal(causal: bool) -> None:
    if causal:
        raise WrongInput("Causal attention has no neighbourhood on a map, so it cannot be masked.")
