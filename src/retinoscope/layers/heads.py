"""Heads that map feature maps to logits, as compared for spatial smoothing (arXiv:2105.12639).

A head consists of a neck, which converts feature maps to vectors, and a last linear layer. To
change the number of classes, only the last layer is replaced; the neck is kept, as in timm's heads.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from timm.layers import SelectAdaptivePool2d
from torch import Tensor, nn

HeadKind = Literal["gap", "mlp", "max", "median", "gap_mlp", "bn_relu_gap", "gap_clip"]
# timm's names for a global pool; "" is none at all.
_POOLS = ("", "avg", "max", "avgmax", "catavgmax", "fast", "fastavg", "fastmax", "fastavgmax")


class GlobalMedian(nn.Module):
    """The median of each map: (N, C, H, W) → (N, C).

    For n points it is the ⌊n/2⌋-th largest, as in the authors' code: one of the values, never a
    mean of two.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The medians."""
        points = x.flatten(2)
        return points.topk(max(1, points.shape[2] // 2), dim=2).values[:, :, -1]


class SoftClip(nn.Module):
    """Compresses values smoothly into (−τ/2, τ/2)."""

    def __init__(self, tau: float = 2.0) -> None:
        super().__init__()
        self.tau = tau

    def forward(self, x: Tensor) -> Tensor:
        """The clipped values."""
        return self.tau * (torch.sigmoid(x / self.tau) - 0.5)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"tau={self.tau:g}"


@dataclass(frozen=True)
class HeadSettings:
    """The settings of a head."""

    kind: HeadKind | str
    """How maps are converted to vectors.

    - ``gap``, ``max``, ``median``: the mean, maximum or median of each map
    - ``bn_relu_gap``: the mean after batch norm and ReLU
    - ``gap_clip``: the mean, compressed into (−1, 1)
    - ``mlp``: maps averaged to ``side`` × ``side`` points, then two hidden layers
    - ``gap_mlp``: the mean, then two hidden layers

    timm's names for a global pool (``avg``, ``avgmax``, …) are valid too; ``""`` does not pool.
    """
    channels: int
    """Channels of the maps."""
    hidden: int = 4096
    """Width of the two hidden layers."""
    side: int = 7
    """Side of the averaged maps."""
    drop_rate: float | None = None
    """Dropout rate after each hidden layer and before the last layer. Default: 0.5 with hidden
    layers, else 0."""

    def __post_init__(self) -> None:
        if self.kind not in (*get_args(HeadKind), *_POOLS):
            raise ValueError(
                f"There is no head {self.kind!r}. It is one of: {', '.join(get_args(HeadKind))}; "
                f"or a global pool of timm's: {', '.join(_POOLS[1:])}; or '' for none."
            )
        if self.hidden < 1 or self.side < 1:
            raise ValueError(
                f"A head needs hidden ≥ 1 and side ≥ 1; got {self.hidden} and {self.side}."
            )

    @property
    def has_layers(self) -> bool:
        """Whether there are hidden layers between the pool and the last layer."""
        return self.kind in ("mlp", "gap_mlp")

    @property
    def features(self) -> int:
        """Width of the vectors that the neck outputs."""
        if self.has_layers:
            return self.hidden
        return self.channels * (2 if self.kind == "catavgmax" else 1)

    @property
    def dropout(self) -> float:
        """The effective dropout rate."""
        return (0.5 if self.has_layers else 0.0) if self.drop_rate is None else self.drop_rate

    def neck(self) -> nn.Module:
        """A new layer from maps (N, C, H, W) to vectors (N, ``features``)."""
        mean = SelectAdaptivePool2d(pool_type="avg", flatten=True)
        match self.kind:
            case "gap":
                return mean
            case "median":
                return GlobalMedian()
            case "bn_relu_gap":
                return nn.Sequential(nn.BatchNorm2d(self.channels), nn.ReLU(), mean)
            case "gap_clip":
                return nn.Sequential(mean, SoftClip())
            case "mlp" | "gap_mlp":
                return self._layers()
            case pool:
                return SelectAdaptivePool2d(pool_type=pool, flatten=bool(pool))

    def _layers(self) -> nn.Module:
        side = self.side if self.kind == "mlp" else 1
        layers: dict[str, nn.Module] = {
            "pool": nn.AdaptiveAvgPool2d(side),
            "flatten": nn.Flatten(1),
            "fc1": nn.Linear(self.channels * side * side, self.hidden),
            "act1": nn.ReLU(),
            "drop1": nn.Dropout(self.dropout),
            "fc2": nn.Linear(self.hidden, self.hidden),
            "act2": nn.ReLU(),
        }
        return nn.Sequential(OrderedDict(layers))

    def linear(self, classes: int) -> nn.Module:
        """A new last layer for ``classes`` classes; the identity for 0."""
        if not classes:
            return nn.Identity()
        if not self.kind:
            raise ValueError(
                f"Maps that are not pooled cannot be classified into {classes} classes. Use 0 "
                f"classes, or one of the heads: {', '.join(get_args(HeadKind))}."
            )
        return nn.Linear(self.features, classes)


class Head(nn.Module):
    """Maps (N, C, H, W) → logits (N, ``classes``): neck, dropout and a last linear layer."""

    def __init__(self, settings: HeadSettings, classes: int) -> None:
        super().__init__()
        self.settings = settings
        self.neck = settings.neck()
        self.drop = nn.Dropout(settings.dropout)
        self.fc = settings.linear(classes)

    def reset(self, classes: int, kind: str | None = None, **where: Any) -> None:
        """Replace the last layer by one for ``classes`` classes; also the neck if ``kind`` differs.

        Args:
            classes: Number of classes; 0 omits the last layer.
            kind: One of the heads; None keeps the current one.
            where: ``device`` and ``dtype`` of the new layers.
        """
        if kind is not None and kind != self.settings.kind:
            settings = replace(self.settings, kind=kind)
            settings.linear(classes)  # raises before anything is changed
            self.settings, self.neck = settings, settings.neck().to(**where)
            self.drop = nn.Dropout(settings.dropout)
        self.fc = self.settings.linear(classes).to(**where)
        self.train(self.training)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The logits; with ``pre_logits``, the input vectors of the last layer."""
        x = self.drop(self.neck(x))
        return x if pre_logits else self.fc(x)


def make_head(
    kind: HeadKind | str,
    channels: int,
    classes: int,
    *,
    hidden: int = 4096,
    side: int = 7,
    drop_rate: float | None = None,
) -> Head:
    """A head of this ``kind`` (see `HeadSettings`) for ``classes`` classes.

    Example:
        >>> make_head("gap", channels=8, classes=10)(torch.zeros(2, 8, 4, 4)).shape
        torch.Size([2, 10])
    """
    return Head(HeadSettings(kind, channels, hidden, side, drop_rate), classes)
