"""VGG with batch norm for images of 32 × 32 pixels (Simonyan & Zisserman, 2015, arXiv:1409.1556).

Heads, smoothing and MC dropout as in Park & Kim, 2022, arXiv:2105.12639. Maps are halved between
stages; the fifth halving of the original stands only before an MLP, as a mean over the one point
that it would leave of 32 × 32 pixels would be none.
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
    """The largest of each 2 × 2 points; a row or column of one point stays as it is."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """The halved maps."""
        return max_pool2d(input, 2, ceil_mode=min(input.shape[-2:]) < 2)


class CifarVGG(nn.Module):
    """Stages of 3×3 convolutions, halved in between, and before an MLP once more.

    Args:
        stages: Channels of each convolution of each stage.
        num_classes: 0 leaves out the last linear map.
        in_chans: Channels of the image.
        smoothing: For each stage 1 to smooth its last maps before they are halved or pooled, or 0.
        smooth_kernel: The four settings of `Smooth`.
        smooth_padding: See there.
        smooth_prob: See there.
        smooth_tau: See there.
        mc_dropout: Rate of dropout behind each convolution, norm and ReLU.
        always: Whether that dropout goes on in eval mode.
        head: How the last maps become logits, see `HeadSettings`.
        head_hidden: Width of the hidden layers of an MLP.
        head_side: Side to which maps are averaged for an MLP.
        drop_rate: Of the head's dropout; without it, what is usual for the head.
        global_pool: timm's word for the head; where given, it replaces ``head``.
        device: Where to put the weights.
        dtype: Of the weights.
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
            # All of it in the place of the ReLU, so that no weight gets another name.
            act = nn.Sequential(OrderedDict(behind)) if len(behind) > 1 else behind["act"]
            self.features.extend((conv, nn.BatchNorm2d(width), act))
            channels = width
        self._end_stage(channels)

    def _end_stage(self, channels: int) -> None:
        """Note where the maps of a stage are to be had."""
        place = f"features.{len(self.features) - 1}"
        reduction = 2 ** len(self.feature_info)
        self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": place})

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Which parameters belong together, for rates that change with depth."""
        return {"stem": r"^features\.0", "blocks": r"^features\.(\d+)"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the maps between stages for the backward pass; compute the rest anew."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The last linear map."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Another last linear map; another head too where ``global_pool`` names another."""
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
        """The last maps and the maps at the end of stages, or only these.

        Args:
            x: Images (N, C, H, W).
            indices: Which of ``feature_info``; a number means so many of the last, None all.
            norm: Part of timm's signature; there is no last norm.
            stop_early: Compute nothing behind the last of them.
            output_fmt: Only ``NCHW``.
            intermediates_only: Leave out the last maps.
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
        """Drop what ``forward_intermediates`` does not need for ``indices``; returns these."""
        indices, last = feature_take_indices(len(self.feature_info), indices)
        self.features = self.features[: self._place(last) + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return indices

    def forward_features(self, x: Tensor) -> Tensor:
        """The last maps."""
        if not self.grad_checkpointing:
            return self.features(x)
        ends = [self._place(index) + 1 for index in range(len(self.feature_info))]
        return checkpoint_seq([self.features[a:b] for a, b in pairwise([0, *ends])], x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Maps to logits."""
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        return self.forward_head(self.forward_features(x))


def _stages(*counts: int) -> dict[str, Any]:
    """So many convolutions in each of the five stages of the original."""
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
    """VGG-16 with two hidden layers behind 7 × 7 points."""
    return _create(
        "vgg16_mlp_cifar", pretrained, **_stages(2, 2, 3, 3, 3) | {"head": "mlp"} | kwargs
    )


@register_model
def vgg16_smooth_cifar(pretrained: bool = False, **kwargs: Any) -> CifarVGG:
    """VGG-16, smoothed at the end of each stage."""
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
    """micro_vgg with two hidden layers of 64 behind 2 × 2 points."""
    return _create(
        "micro_vgg_mlp",
        pretrained,
        **_MICRO | {"head": "mlp", "head_hidden": 64, "head_side": 2} | kwargs,
    )
