"""Dropout that stays active at test time (Gal & Ghahramani, 2016, arXiv:1506.02142).

Each pass through a network is then a random sample of its weights, and the mean over passes
estimates the posterior prediction.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout


class MonteCarloDropout(nn.Module):
    """Sets a fraction ``p`` of a tensor's values to zero and scales up the rest.

    Args:
        p: The fraction. 0 is the identity and uses no random numbers.
        always: Also in eval mode; False makes it ordinary dropout.
        unit: The unit of the anatomy that a surgery added it to, if any.
    """

    def __init__(self, p: float = 0.3, always: bool = True, unit: str = "") -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Dropout needs 0 ≤ p < 1; got p={p}.")
        self.p = float(p)
        self.always = always
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """The tensor after dropout."""
        if self.p == 0:
            return x
        return dropout(x, self.p, training=self.always or self.training)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"p={self.p:g}, always={self.always}" + f", unit={self.unit}" * bool(self.unit)
