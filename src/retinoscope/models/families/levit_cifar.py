"""LeViT for images of 32 × 32 pixels (Graham et al., 2021, arXiv:2104.01136); the class is timm's.

LeViT's stem halves an image four times, which would leave 2 × 2 positions of a small image, and a
single one from the second stage on. Here the same convolutions have smaller strides. In
``levit_128s_cifar`` only the last one has stride 2, so that the grids are 16 × 16, 8 × 8 and 4 × 4,
close to 14, 7 and 4 in the paper. There is no second classifier for distillation.
"""

from __future__ import annotations

import math
from typing import Any

from timm.layers import get_act_layer
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.levit import Attention, AttentionDownsample, Levit, Stem8, Stem16
from torch import Tensor, nn

from retinoscope.models.families.configuration import cifar_cfg


class _Uncached:
    """Attention that looks up its biases in every forward pass.

    In eval mode, timm caches those of the first pass. The cache would stay the same after loading
    other weights or changing the dtype, and a second backward pass would fail because its graph has
    been freed.
    """

    attention_biases: Tensor
    attention_bias_idxs: Tensor

    def get_attention_biases(self, device: Any) -> Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]


class _Attention(_Uncached, Attention):
    pass


class _AttentionDownsample(_Uncached, AttentionDownsample):
    pass


class CifarLevit(Levit):
    """LeViT with a stem of three or four convolutions with the given strides.

    Args:
        embed_dim: Width of each stage.
        in_chans: Channels of the image.
        act_layer: Name of the activation function.
        img_size: Side of the image, or (height, width); multiples of the product of the strides.
        stem_strides: Strides of the stem's convolutions: four for timm's ``s16`` stem, three for
            its ``s8`` stem.
        kwargs: Further arguments of timm's class.
    """

    def __init__(
        self,
        embed_dim: tuple[int, ...],
        in_chans: int = 3,
        act_layer: str = "hard_swish",
        img_size: int | tuple[int, int] = 32,
        stem_strides: tuple[int, ...] = (1, 1, 1, 2),
        **kwargs: Any,
    ) -> None:
        stride = math.prod(stem_strides)
        sides = (img_size, img_size) if isinstance(img_size, int) else img_size
        if any(side % stride for side in sides):
            raise ValueError(
                f"This LeViT's stem strides by {stride} and needs sides that are multiples of it; "
                f"img_size={img_size} was asked for."
            )
        factory = {key: kwargs[key] for key in ("device", "dtype") if key in kwargs}
        stem = _stem(in_chans, embed_dim[0], get_act_layer(act_layer), stem_strides, factory)
        super().__init__(
            img_size=img_size,
            in_chans=in_chans,
            embed_dim=embed_dim,
            act_layer=act_layer,
            stem_backbone=stem,
            stem_stride=stride,
            **kwargs,
        )
        for module in self.modules():
            # timm's constructor creates these layers; only the look-up of biases differs.
            if isinstance(module, Attention):
                module.__class__ = _Attention
            elif isinstance(module, AttentionDownsample):
                module.__class__ = _AttentionDownsample


def _stem(
    in_chans: int, width: int, act: Any, strides: tuple[int, ...], factory: dict[str, Any]
) -> nn.Module:
    """One of timm's stems with other strides but the same parameters."""
    makers = {3: Stem8, 4: Stem16}
    if len(strides) not in makers or math.prod(strides) < 2:
        raise ValueError(
            f"LeViT's stem has three or four convolutions that stride by 2 or more in all; "
            f"stem_strides={strides} was asked for."
        )
    stem = makers[len(strides)](in_chans, width, act_layer=act, **factory)
    stem.stride = math.prod(strides)
    for place, stride in enumerate(strides, 1):
        stem.get_submodule(f"conv{place}.linear").stride = (stride, stride)  # pyright: ignore
    return stem


default_cfgs = generate_default_cfgs(
    {
        "levit_128s_cifar": cifar_cfg("stem.conv1.linear", "head.linear", fixed_input_size=True),
        "micro_levit": cifar_cfg(
            "stem.conv1.linear", "head.linear", classes=10, fixed_input_size=True
        ),
    }
)


def _levit(variant: str, pretrained: bool, settings: dict[str, Any]) -> CifarLevit:
    out_indices = settings.pop("out_indices", (0, 1, 2))
    feature_cfg = {"out_indices": out_indices, "feature_cls": "getter"}
    return build_model_with_cfg(
        CifarLevit, variant, pretrained, feature_cfg=feature_cfg, **settings
    )


@register_model
def levit_128s_cifar(pretrained: bool = False, **kwargs: Any) -> CifarLevit:
    """7.05 M parameters; grids of 16 × 16, 8 × 8 and 4 × 4."""
    settings = {
        "embed_dim": (128, 256, 384), "key_dim": 16, "num_heads": (4, 6, 8), "depth": (2, 3, 4),
        "stem_strides": (1, 1, 1, 2),
    }  # fmt: skip
    return _levit("levit_128s_cifar", pretrained, settings | kwargs)


@register_model
def micro_levit(pretrained: bool = False, **kwargs: Any) -> CifarLevit:
    """0.15 M parameters; grids of 8 × 8, 4 × 4 and 2 × 2, since attention on 16 × 16 is slow."""
    settings = {
        "embed_dim": (32, 40, 56), "key_dim": 8, "num_heads": (2, 3, 4), "depth": (2, 2, 2),
        "stem_strides": (1, 2, 2),
    }  # fmt: skip
    return _levit("micro_levit", pretrained, settings | kwargs)
