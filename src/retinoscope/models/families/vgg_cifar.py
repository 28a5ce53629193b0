"""VGG with batch norm for images of 32 × 32 pixels (Simonyan & Zisserman, 2015, arXiv:1409.1556).

Heads, smoothing and MC dropout follow Park & Kim, 2022, arXiv:2105.12639. Maps are halved between
stages. The fifth halving of the original is only used before an MLP head: it reduces an image of
32 × 32 pixels to a single position, which would leave global pooling nothing to average.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from retinoscope.layers.dropout import MonteCarloDropout
from retinoscope.layers.heads import HeadKind, make_head
from retinoscope.layers.smoothing import Padding, ProbKind, Smooth, check_smoothing
from retinoscope.models.families.configuration import cifar_cfg
from retinoscope.models.families.intermediates import check_maps


class Halving(nn.MaxPool2d):
    """Max pooling over 2 × 2 positions; a side of one position stays as it is."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """The halved maps."""
        return max_pool2d(input, 2, ceil_mode=min(input.shape[-2:]) < 2)


class CifarVGG(nn.Module):
    """Stages of 3×3 convolutions; maps are halved between stages and before an MLP head.

    Args:
        stages: Channels of each convolution of each stage.
        num_classes: Number of classes; 0 omits the last linear layer.
        in_chans: Channels of the image.
        smoothing: For each stage, 1 to smooth its last maps before they are halved or pooled, or 0.
        smooth_kernel: Kernel size of `Smooth`.
        smooth_padding: Padding of `Smooth`.
        smooth_prob: Bounding function of `Smooth`.
        smooth_tau: Value at which the bounding function saturates. Default: see `Prob`.
        mc_dropout: Dropout rate after each group of convolution, norm and ReLU.
        always: Whether this dropout stays active in eval mode.
        head: How the last maps are converted to logits; see `HeadSettings`.
        head_hidden: Width of the hidden layers of an MLP head.
        head_side: Side to which maps are averaged for an MLP head.
        drop_rate: Dropout rate of the head. Default: see `HeadSettings`.
        global_pool: timm's name for the head; if given, it replaces ``head``.
        device: Device of the weights.
        dtype: Type of the weights.
    """

    def __init__(
        self,
        stages: tuple[tuple[int, ...], ...],
        num_classes: int = 100,
        in_chans: int = 3,
        *,
        smoothing: tuple[int, ...] | None = None,
        smooth_kernel: int = 2,
        smooth_padding: Padding = "replicate",
        smooth_prob: ProbKind = "tanh",
        smooth_tau: float | None = None,
        mc_dropout: float = 0.0,
        always: bool = True,
        head: HeadKind = "gap",
        head_hidden: int = 4096,
        head_side: int = 7,
        drop_rate: float | None = None,
        global_pool: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_chans, self.num_classes = in_chans, num_classes
        self.grad_checkpointing = False
        self.features, self.feature_info = nn.Sequential(), []
        smoothing = (0,) * len(stages) if smoothing is None else smoothing
        check_smoothing(smoothing, len(stages))
        make = partial(Smooth, smooth_kernel, smooth_padding, smooth_prob, smooth_tau)
        drop = partial(MonteCarloDropout, mc_dropout, always) if mc_dropout else None
        channels = in_chans
        for widths, wanted in zip(stages, smoothing, strict=True):
            if self.feature_info:
                self.features.append(Halving())
            self._append_stage(channels, widths, make if wanted else None, drop)
            channels = widths[-1]
        if head == "mlp":
            self.features.append(Halving())
            self._end_stage(channels)
        self.num_features = channels
        kind = head if global_pool is None else global_pool
        self.head = make_head(
            kind, channels, num_classes, hidden=head_hidden, side=head_side, drop_rate=drop_rate
        )
        self.head_hidden_size = self.head.settings.features
        self.to(device=device, dtype=dtype)

    def _append_stage(
        self,
        channels: int,
        widths: tuple[int, ...],
        smooth: Callable[..., nn.Module] | None,
        drop: Callable[[], nn.Module] | None,
    ) -> None:
        for place, width in enumerate(widths, 1):
            conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            behind: dict[str, nn.Module] = {"act": nn.ReLU(inplace=True)}
            if drop:
                behind["drop"] = drop()
            if smooth and place == len(widths):
                behind["smooth"] = smooth(channels=width)
            # All of these take the index of the ReLU, so that no weight changes its name.
            act = nn.Sequential(OrderedDict(behind)) if len(behind) > 1 else behind["act"]
            self.features.extend((conv, nn.BatchNorm2d(width), act))
            channels = width
        self._end_stage(channels)

    def _end_stage(self, channels: int) -> None:
        """Record which module outputs the maps of a stage."""
        place = f"features.{len(self.features) - 1}"
        reduction = 2 ** len(self.feature_info)
        self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": place})

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Patterns by which timm groups parameters by depth, for layer-wise learning rates."""
        return {"stem": r"^features\.0", "blocks": r"^features\.(\d+)"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the maps between stages for the backward pass; recompute the rest."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The last linear layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last linear layer, and the head if ``global_pool`` names another one."""
        like = next(self.parameters())
        self.head.reset(num_classes, global_pool, device=like.device, dtype=like.dtype)
        self.head_hidden_size = self.head.settings.features
        self.num_classes = num_classes

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the last maps and those at the end of the selected stages, or only the latter.

        Args:
            x: Images (N, C, H, W).
            indices: Indices into ``feature_info``; a number n selects the last n, None all.
            norm: Part of timm's signature; without effect, since there is no last norm.
            stop_early: Whether to skip the layers after the last selected stage.
            output_fmt: Must be ``NCHW``.
            intermediates_only: Whether to omit the last maps.
        """
        check_maps(output_fmt)
        indices, last = feature_take_indices(len(self.feature_info), indices)
        places = [self._place(index) for index in indices]
        found = []
        for place, layer in enumerate(self.features):
            x = layer(x)
            if place in places:
                found.append(x)
            if stop_early and place == self._place(last):
                break
        return found if intermediates_only else (x, found)

    def _place(self, index: int) -> int:
        return int(self.feature_info[index]["module"].removeprefix("features."))

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what ``forward_intermediates`` does not need; return the selected indices."""
        indices, last = feature_take_indices(len(self.feature_info), indices)
        self.features = self.features[: self._place(last) + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return indices

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature maps."""
        if not self.grad_checkpointing:
            return self.features(x)
        ends = [self._place(index) + 1 for index in range(len(self.feature_info))]
        return checkpoint_seq([self.features[a:b] for a, b in pairwise([0, *ends])], x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The logits of feature maps."""
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        return self.forward_head(self.forward_features(x))


def _stages(*counts: int) -> dict[str, Any]:
    """Settings for this number of convolutions in each of the original's five stages."""
    widths = zip((64, 128, 256, 512, 512), counts, strict=True)
    return {"stages": tuple((width,) * count for width, count in widths)}


_MICRO: dict[str, Any] = {"stages": ((16, 16), (32, 32), (48, 48), (64, 64))}
_LARGE = (
    "vgg11_gap_cifar", "vgg16_gap_cifar", "vgg16_mlp_cifar", "vgg16_smooth_cifar",
    "vgg16_mcdo_cifar", "vgg19_gap_cifar",
)  # fmt: skip
_SMALL = ("micro_vgg", "micro_vgg_mlp")
default_cfgs = generate_default_cfgs({
    **{name: cifar_cfg("features.0", "head.fc") for name in _LARGE},
    **{name: cifar_cfg("features.0", "head.fc", classes=10) for name in _SMALL},
})  # fmt: skip


def _create(variant: str, pretrained: bool, **options: Any) -> CifarVGG:
    count = len(options["stages"]) + (options.get("head") == "mlp")
    features = {"flatten_sequential": True, "out_indices": tuple(range(count))}
    return build_model_with_cfg(CifarVGG, variant, pretrained, feature_cfg=features, **options)


@register_model
def vgg11_gap_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """9.3 M parameters."""
    return _create("vgg11_gap_cifar", pretrained, **_stages(1, 1, 2, 2, 2) | kwargs)


@register_model
def vgg16_gap_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """14.8 M parameters."""
    return _create("vgg16_gap_cifar", pretrained, **_stages(2, 2, 3, 3, 3) | kwargs)


@register_model
def vgg16_mlp_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """VGG-16 with an MLP head: two hidden layers on maps averaged to 7 × 7."""
    return _create(
        "vgg16_mlp_cifar", pretrained, **_stages(2, 2, 3, 3, 3) | {"head": "mlp"} | kwargs
    )


@register_model
def vgg16_smooth_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """VGG-16 with spatial smoothing at the end of each stage."""
    return _create(
        "vgg16_smooth_cifar",
        pretrained,
        **_stages(2, 2, 3, 3, 3) | {"smoothing": (1, 1, 1, 1, 1)} | kwargs,
    )


@register_model
def vgg16_mcdo_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """VGG-16 with MC dropout."""
    return _create(
        "vgg16_mcdo_cifar", pretrained, **_stages(2, 2, 3, 3, 3) | {"mc_dropout": 0.3} | kwargs
    )


@register_model
def vgg19_gap_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """20.1 M parameters."""
    return _create("vgg19_gap_cifar", pretrained, **_stages(2, 2, 4, 4, 4) | kwargs)


@register_model
def micro_vgg(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """0.12 M parameters."""
    return _create("micro_vgg", pretrained, **_MICRO | kwargs)


@register_model
def micro_vgg_mlp(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """micro_vgg with an MLP head: two hidden layers of 64 on maps averaged to 2 × 2."""
    return _create(
        "micro_vgg_mlp",
        pretrained,
        **_MICRO | {"head": "mlp", "head_hidden": 64, "head_side": 2} | kwargs,
    )
