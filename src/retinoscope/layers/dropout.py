"""Dropout that goes on when training is over (Gal & Ghahramani, 2016, arXiv:1506.02142).

Each pass through a network then is a draw of its weights, and the mean over passes an estimate of
the posterior's prediction.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout


class MonteCarloDropout(nn.Module):
    """The same tensor with a fraction ``p`` of its values set to zero, the rest scaled up.

    Args:
        p: The fraction. 0 is the identity and draws no random numbers.
        always: Also in eval mode; False makes it ordinary dropout.
        unit: The unit of an anatomy that it was put into, where a surgery has put it there.
    """

    def __init__(self, p: float = 0.3, always: bool = True, unit: str = "") -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Dropout keeps some values: 0 ≤ p < 1; got p={p}.")
        self.p = float(p)
        self.always = always
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """The tensor, thinned out."""
        if self.p == 0:
            return x
        return dropout(x, self.p, training=self.always or self.training)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"p={self.p:g}, always={self.always}" + f", unit={self.unit}" * bool(self.unit)
