"""Spatial smoothing, which averages neighbouring points of a map like an ensemble.

From Park & Kim, "Blurs Behave Like Ensembles: Spatial Smoothings to Improve Accuracy, Uncertainty,
and Robustness" (ICML 2022, arXiv:2105.12639). ``Smooth = Blur ∘ Prob``: first the values are
bounded so that they resemble probabilities, then each point is averaged with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

Padding = Literal["replicate", "grow"]
ProbKind = Literal["tanh", "bn_tanh", "sigmoid", "softmax", "clamp", "scale", "off"]


class Blur(nn.Module):
    """Averages maps (N, C, H, W) over ``kernel`` × ``kernel`` points at every position.

    With ``padding="replicate"`` the border is repeated, the size is kept and a constant map does
    not change; an even kernel extends one point further to the right and below. ``"grow"`` follows
    the authors' code: zeros around the map count as values, so that borders darken, and the map
    grows by one if the kernel is even.

    Example:
        >>> Blur()(torch.tensor([[[[0.0, 4.0], [8.0, 0.0]]]]))
        tensor([[[[3., 2.],
                  [4., 0.]]]])
    """

    def __init__(self, kernel: int = 2, padding: Padding = "replicate") -> None:
        super().__init__()
        if kernel < 1:
            raise ValueError(f"The kernel of a blur must be at least 1; got kernel={kernel}.")
        if padding not in get_args(Padding):
            raise ValueError(
                f"There is no padding {padding!r} for a blur. "
                f"It is one of: {', '.join(get_args(Padding))}."
            )
        self.kernel = kernel
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """The blurred maps."""
        if self.kernel == 1:
            return x
        if self.padding == "grow":
            return avg_pool2d(x, self.kernel, 1, self.kernel // 2)
        before, after = (self.kernel - 1) // 2, self.kernel // 2
        return avg_pool2d(pad(x, (before, after, before, after), "replicate"), self.kernel, 1)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"kernel={self.kernel}, padding={self.padding!r}"


def _bounded(x: Tensor, tau: float) -> Tensor:
    return torch.relu(tau * torch.tanh(x / tau))


_FORMS: dict[ProbKind, tuple[float, Callable[[Tensor, float], Tensor]]] = {
    "tanh": (10.0, _bounded),
    "bn_tanh": (10.0, _bounded),
    "sigmoid": (10.0, lambda x, tau: torch.relu(4 * tau * (torch.sigmoid(x / tau) - 0.5))),
    "softmax": (10.0, lambda x, tau: tau * torch.softmax(x / tau, dim=1)),
    "clamp": (6.0, lambda x, tau: x.clamp(0, tau)),
    "scale": (5.0, lambda x, tau: x / tau),
    "off": (1.0, lambda x, tau: x),
}
"""The default τ and the function of each kind."""


class Prob(nn.Module):
    r"""Bounds the values of maps (N, C, H, W), point by point.

    ===========  ====================================================  =======
    kind         value                                                 usual τ
    ===========  ====================================================  =======
    ``tanh``     :math:`\max(0, \tau \tanh(x / \tau))`                 10
    ``bn_tanh``  the same after a trainable batch norm                 10
    ``sigmoid``  :math:`\max(0, 4 \tau (\sigma(x / \tau) - 1/2))`      10
    ``softmax``  :math:`\tau` softmax(:math:`x / \tau`) over channels  10
    ``clamp``    cut off below 0 and above :math:`\tau`                6
    ``scale``    :math:`x / \tau`                                      5
    ``off``      :math:`x`                                             none
    ===========  ====================================================  =======

    ``tanh`` and ``sigmoid`` have slope one at zero: small values pass unchanged.

    Args:
        kind: See the table.
        tau: The value at which it saturates. Default: see the table.
        channels: Number of channels; only needed for ``bn_tanh``.

    Example:
        >>> Prob("clamp")(torch.tensor([-1.0, 3.0, 9.0]))
        tensor([0., 3., 6.])
    """

    def __init__(
        self, kind: ProbKind = "tanh", tau: float | None = None, channels: int | None = None
    ) -> None:
        super().__init__()
        if kind not in _FORMS:
            raise ValueError(f"There is no prob {kind!r}. It is one of: {', '.join(_FORMS)}.")
        self.kind: ProbKind = kind
        self.tau = _FORMS[kind][0] if tau is None else float(tau)
        if not self.tau > 0:
            raise ValueError(f"tau must be positive; got tau={tau}.")
        if kind == "bn_tanh":
            if channels is None:
                raise ValueError("prob 'bn_tanh' normalises each channel: pass channels=….")
            self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """The bounded values."""
        if self.kind == "bn_tanh":
            x = self.norm(x)
        return _FORMS[self.kind][1](x, self.tau)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"{self.kind!r}" if self.kind == "off" else f"{self.kind!r}, tau={self.tau:g}"


class Smooth(nn.Module):
    """Bounds maps (N, C, H, W) with ``prob``, then blurs them."""

    def __init__(
        self,
        kernel: int = 2,
        padding: Padding = "replicate",
        prob: ProbKind = "tanh",
        tau: float | None = None,
        channels: int | None = None,
    ) -> None:
        super().__init__()
        self.prob = Prob(prob, tau, channels)
        self.blur = Blur(kernel, padding)

    def forward(self, x: Tensor) -> Tensor:
        """The smoothed maps."""
        return self.blur(self.prob(x))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"{self.blur.extra_repr()}, prob={self.prob.extra_repr()}"


def check_smoothing(smoothing: tuple[int, ...], stages: int) -> None:
    """Raise unless ``smoothing`` has a 0 or 1 for each of the ``stages`` of a network."""
    if len(smoothing) != stages or not set(smoothing) <= {0, 1}:
        raise ValueError(
            f"smoothing needs a 0 or 1 for each of the {stages} stages; got {smoothing}. The size "
            "of the blur is smooth_kernel."
        )
