"""Layers with the mean token: added to every token (Context Broadcasting), or as class token.

Context Broadcasting is uniform attention at almost no cost: the mean over all tokens is added to
each of them. From Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention"
(ICCV 2023, arXiv:2210.08457).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Variant = Literal["cb", "cb_s", "gate", "hybrid"]


class Broadcast(nn.Module):
    r"""Combines each token with the mean :math:`\bar x` or the class token :math:`x_0`.

    ==========  =================================================
    variant     token :math:`x_i` becomes
    ==========  =================================================
    ``cb``      :math:`(x_i + \bar x) / 2`
    ``cb_s``    :math:`x_i + \Lambda \bar x`, one λ per channel
    ``gate``    :math:`x_i \odot (x_0 + 1)`
    ``hybrid``  :math:`x_i \odot x_0 + (x_i + \bar x) / 2`
    ==========  =================================================

    Λ is initialised to zero, so that at first the layer is the identity and does not change a
    trained network. The gradient of Λ, the mean token times the gradient of the output, is not zero
    there.

    Args:
        variant: See the table.
        positions: The dimensions of the tokens. The mean is over all of them, including tokens
            outside the grid; the class token is the first.
        channel: The dimension of the channels.
        channels: The number of channels; only needed for ``cb_s``.
        scale: The strength of the change: 0 changes nothing, 1 is the paper's.

    Example:
        >>> Broadcast("cb")(torch.tensor([[[0.0], [4.0]]]))
        tensor([[[1.],
                 [3.]]])
    """

    def __init__(
        self,
        variant: Variant = "cb",
        positions: Sequence[int] = (1,),
        channel: int = -1,
        channels: int | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if variant not in get_args(Variant):
            raise ValueError(
                f"There is no variant {variant!r} of Context Broadcasting. "
                f"It is one of: {', '.join(get_args(Variant))}."
            )
        if variant in ("gate", "hybrid") and len(positions) != 1:
            raise ValueError(
                f"Variant {variant!r} reads the first token, so the tokens must be in one "
                f"dimension; got {tuple(positions)}."
            )
        self.variant: Variant = variant
        self.positions = tuple(positions)
        self.channel = channel
        self.scale = float(scale)
        if variant == "cb_s":
            if channels is None:
                raise ValueError("Variant 'cb_s' scales each channel: pass channels=….")
            self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """The changed tokens, in the same layout."""
        if self.scale == 0:
            return x
        if self.variant == "cb_s":
            shape = [1] * x.ndim
            shape[self.channel] = -1
            return x + self.scale * self.weight.view(shape) * self._mean(x)
        if self.variant == "gate":
            return x * (1 + self.scale * self._first(x))
        half = self.scale / 2
        averaged = (1 - half) * x + half * self._mean(x)
        if self.variant == "cb":
            return averaged
        return averaged + self.scale * x * self._first(x)

    def _mean(self, x: Tensor) -> Tensor:
        return x.mean(self.positions, keepdim=True)

    def _first(self, x: Tensor) -> Tensor:
        return x.narrow(self.positions[0], 0, 1)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"{self.variant!r}, positions={self.positions}, scale={self.scale:g}"


class MeanPrefix(nn.Module):
    """Replaces the tokens outside the grid by the mean of those in it.

    Args:
        dimension: The dimension of the tokens.
        before: The number of tokens before the grid.
        behind: The number of tokens after the grid.

    Example:
        >>> MeanPrefix(before=1)(torch.tensor([[[9.0], [1.0], [3.0]]])).flatten()
        tensor([2., 1., 3.])
    """

    def __init__(self, dimension: int = 1, before: int = 1, behind: int = 0) -> None:
        super().__init__()
        self.dimension, self.before, self.behind = dimension, before, behind

    def forward(self, x: Tensor) -> Tensor:
        """The changed tokens, in the same layout."""
        size = x.shape[self.dimension] - self.before - self.behind
        grid = x.narrow(self.dimension, self.before, size)
        mean = grid.mean(self.dimension, keepdim=True)
        parts = [*[mean] * self.before, grid, *[mean] * self.behind]
        return torch.cat(parts, self.dimension)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"dimension={self.dimension}, before={self.before}, behind={self.behind}"
