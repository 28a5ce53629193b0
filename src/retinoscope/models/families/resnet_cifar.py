"""ResNets and ResNeXts for images of 32 × 32 pixels: plain, smoothed, Bayesian or with an MLP.

He et al., 2016, arXiv:1512.03385, and Xie et al., 2017, arXiv:1611.05431, as timm's class with a
stem for CIFAR. Smoothing and MC dropout follow Park & Kim, 2022, arXiv:2105.12639.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn

from retinoscope.layers.dropout import MonteCarloDropout
from retinoscope.layers.heads import HeadKind, HeadSettings
from retinoscope.layers.smoothing import Padding, ProbKind, Smooth, check_smoothing
from retinoscope.models.families.configuration import cifar_cfg
from retinoscope.zoo import with_weights


class CifarStemResNet(ResNet):
    """timm's ResNet with a stem of one 3×3 convolution at full resolution.

    Its weights have the same names as in timm, also with smoothing and dropout.

    Args:
        block: timm's ``BasicBlock`` or ``Bottleneck``.
        layers: Number of blocks in each of the four stages.
        num_classes: Number of classes; 0 omits the last linear layer.
        in_chans: Channels of the image.
        channels: Width of each stage; the maps of bottlenecks have four times as many channels.
        stem_width: Channels of the stem, an even number. Default: the width of the first stage.
        output_stride: 8, or 4 or 2 to dilate the last stages instead of subsampling.
        smoothing: For each stage, 1 to smooth its last maps, or 0.
        smooth_kernel: Kernel size of `Smooth`.
        smooth_padding: Padding of `Smooth`.
        smooth_prob: Bounding function of `Smooth`.
        smooth_tau: Value at which the bounding function saturates. Default: see `Prob`.
        mc_dropout: Dropout rate before the last convolution of each block.
        always: Whether this dropout stays active in eval mode.
        head: How the last maps are converted to logits; see `HeadSettings`.
        head_hidden: Width of the hidden layers of an MLP head.
        head_side: Side to which maps are averaged for an MLP head.
        drop_rate: Dropout rate of the head. Default: see `HeadSettings`.
        global_pool: timm's name for the head; if given, it replaces ``head``.
        more: Further arguments of timm's ResNet.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        layers: tuple[int, ...],
        num_classes: int = 100,
        in_chans: int = 3,
        *,
        channels: tuple[int, ...] = (64, 128, 256, 512),
        stem_width: int | None = None,
        output_stride: int = 8,
        smoothing: tuple[int, ...] = (0, 0, 0, 0),
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
        **more: Any,
    ) -> None:
        width = channels[0] if stem_width is None else stem_width
        if width % 2:
            raise ValueError(f"The stem of a ResNet has an even number of channels; got {width}.")
        if output_stride not in (2, 4, 8, 16, 32):  # 16 and 32, valid in timm, mean 8
            raise ValueError(f"output_stride is 2, 4 or 8; got {output_stride}.")
        if mc_dropout and more.get("drop_block_rate"):
            raise ValueError("mc_dropout and drop_block_rate want the same place: give one only.")
        super().__init__(
            cast(Any, block),  # timm annotates an instance, but means the class
            layers,
            num_classes=0,
            in_chans=in_chans,
            channels=channels,
            # timm allows a custom width only for its deep stem; the stem itself is replaced below.
            stem_type="deep",
            stem_width=width // 2,
            # timm assumes that the stem reduces the resolution four times, which this one does not.
            output_stride=min(4 * output_stride, 32),
            **more,
        )
        self._replace_stem(in_chans, width)
        make = partial(Smooth, smooth_kernel, smooth_padding, smooth_prob, smooth_tau)
        self._smooth(smoothing, make)
        if mc_dropout:
            self._drop(mc_dropout, always)
        kind = head if global_pool is None else global_pool
        channels_out = int(self.num_features)
        self._set_head(HeadSettings(kind, channels_out, head_hidden, head_side, drop_rate))
        self.reset_classifier(num_classes)

    def _replace_stem(self, in_chans: int, width: int) -> None:
        stem = nn.Conv2d(in_chans, width, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        self.conv1, self.maxpool = self._placed(stem), nn.Identity()
        self.feature_info[0]["reduction"] = 1
        for info in self.feature_info[1:]:
            info["reduction"] = int(info["reduction"]) // 4

    def _smooth(self, smoothing: tuple[int, ...], make: Callable[..., Smooth]) -> None:
        stages = self.feature_info[1:]
        check_smoothing(smoothing, len(stages))
        for info, wanted in zip(stages, smoothing, strict=True):
            if wanted:
                stage = self.get_submodule(str(info["module"]))
                stage.add_module("smooth", self._placed(make(channels=info["num_chs"])))

    def _drop(self, rate: float, always: bool) -> None:
        # timm has a slot between norm and ReLU, where dropout is equivalent to dropout after ReLU.
        for module in self.modules():
            if isinstance(module, BasicBlock | Bottleneck):
                module.drop_block = MonteCarloDropout(rate, always)

    def _set_head(self, settings: HeadSettings) -> None:
        self.head_settings = settings
        self.global_pool = self._placed(settings.neck())
        self.drop_rate, self.head_hidden_size = settings.dropout, settings.features

    def _placed(self, module: nn.Module) -> nn.Module:
        """Move a new layer to the device and dtype of the others, and set their mode."""
        like = next(self.bn1.parameters())
        return module.to(like.device, like.dtype).train(self.training)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last linear layer, and the head if ``global_pool`` names another one."""
        kind = self.head_settings.kind if global_pool is None else global_pool
        settings = replace(self.head_settings, kind=kind)
        self.fc = self._placed(settings.linear(num_classes))  # first, because it may raise an error
        if settings != self.head_settings:
            self._set_head(settings)
        self.num_classes = num_classes


_MICRO: dict[str, Any] = {"block": BasicBlock, "layers": (2, 2, 4, 4), "channels": (8, 16, 24, 32)}
_MICRO_NEXT: dict[str, Any] = _MICRO | {
    "block": Bottleneck, "layers": (2, 2, 3, 3), "cardinality": 4, "base_width": 24
}  # fmt: skip
_MLP: dict[str, Any] = {"head": "mlp", "head_hidden": 64, "head_side": 4}
_SMOOTH: dict[str, Any] = {"smoothing": (1, 1, 1, 1)}
_BAYESIAN: dict[str, Any] = {"mc_dropout": 0.3}
_18: dict[str, Any] = {"block": BasicBlock, "layers": (2, 2, 2, 2)}
_50: dict[str, Any] = {"block": Bottleneck, "layers": (3, 4, 6, 3)}

_LARGE = (
    "resnet18_cifar", "resnet50_cifar", "resnet101_cifar", "resnext50_cifar",
    "resnet18_smooth_cifar", "resnet50_smooth_cifar", "resnet18_mcdo_cifar", "resnet50_mcdo_cifar",
    "resnet18_mcdo_smooth_cifar", "resnet18_mlp_cifar", "resnet50_mlp_cifar",
)  # fmt: skip
_SMALL = (
    "micro_resnet", "micro_resnext", "micro_resnet_smooth", "micro_resnet_mcdo",
    "micro_resnet_mcdo_smooth", "micro_resnet_mlp", "micro_resnet_mcdo_mlp",
)  # fmt: skip
default_cfgs = generate_default_cfgs(with_weights({
    **{name: cifar_cfg("conv1", "fc") for name in _LARGE},
    **{name: cifar_cfg("conv1", "fc", classes=10) for name in _SMALL},
}))  # fmt: skip


def _create(variant: str, pretrained: bool, **options: Any) -> CifarStemResNet:
    return build_model_with_cfg(CifarStemResNet, variant, pretrained, **options)


@register_model
def resnet18_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """11.2 M parameters."""
    return _create("resnet18_cifar", pretrained, **_18 | kwargs)


@register_model
def resnet50_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """23.7 M parameters."""
    return _create("resnet50_cifar", pretrained, **_50 | kwargs)


@register_model
def resnet101_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """42.7 M parameters."""
    return _create("resnet101_cifar", pretrained, **_50 | {"layers": (3, 4, 23, 3)} | kwargs)


@register_model
def resnext50_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """32 groups of 4 channels, 23.2 M parameters."""
    return _create(
        "resnext50_cifar", pretrained, **_50 | {"cardinality": 32, "base_width": 4} | kwargs
    )


@register_model
def resnet18_smooth_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-18 with spatial smoothing at the end of each stage."""
    return _create("resnet18_smooth_cifar", pretrained, **_18 | _SMOOTH | kwargs)


@register_model
def resnet50_smooth_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-50 with spatial smoothing at the end of each stage."""
    return _create("resnet50_smooth_cifar", pretrained, **_50 | _SMOOTH | kwargs)


@register_model
def resnet18_mcdo_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-18 with MC dropout."""
    return _create("resnet18_mcdo_cifar", pretrained, **_18 | _BAYESIAN | kwargs)


@register_model
def resnet50_mcdo_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-50 with MC dropout."""
    return _create("resnet50_mcdo_cifar", pretrained, **_50 | _BAYESIAN | kwargs)


@register_model
def resnet18_mcdo_smooth_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-18 with MC dropout, and spatial smoothing at the end of each stage."""
    return _create("resnet18_mcdo_smooth_cifar", pretrained, **_18 | _BAYESIAN | _SMOOTH | kwargs)


@register_model
def resnet18_mlp_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-18 with an MLP head: two hidden layers on maps averaged to 7 × 7."""
    return _create("resnet18_mlp_cifar", pretrained, **_18 | {"head": "mlp"} | kwargs)


@register_model
def resnet50_mlp_cifar(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """ResNet-50 with an MLP head: two hidden layers on maps averaged to 7 × 7."""
    return _create("resnet50_mlp_cifar", pretrained, **_50 | {"head": "mlp"} | kwargs)


@register_model
def micro_resnet(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """0.12 M parameters."""
    return _create("micro_resnet", pretrained, **_MICRO | kwargs)


@register_model
def micro_resnext(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """Four groups per block, 0.11 M parameters."""
    return _create("micro_resnext", pretrained, **_MICRO_NEXT | kwargs)


@register_model
def micro_resnet_smooth(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """micro_resnet with spatial smoothing at the end of each stage."""
    return _create("micro_resnet_smooth", pretrained, **_MICRO | _SMOOTH | kwargs)


@register_model
def micro_resnet_mcdo(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """micro_resnet with MC dropout."""
    return _create("micro_resnet_mcdo", pretrained, **_MICRO | _BAYESIAN | kwargs)


@register_model
def micro_resnet_mlp(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """micro_resnet with an MLP head: two layers of 64 on 4 × 4 positions, 0.16 M parameters."""
    return _create("micro_resnet_mlp", pretrained, **_MICRO | _MLP | kwargs)


@register_model
def micro_resnet_mcdo_smooth(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """micro_resnet with MC dropout, smoothed at the end of each stage."""
    settings = _MICRO | _BAYESIAN | _SMOOTH
    return _create("micro_resnet_mcdo_smooth", pretrained, **settings | kwargs)


@register_model
def micro_resnet_mcdo_mlp(pretrained: bool = False, **kwargs: Any) -> CifarStemResNet:
    """micro_resnet_mlp with MC dropout in its blocks; that of its head is off in eval mode."""
    return _create("micro_resnet_mcdo_mlp", pretrained, **_MICRO | _BAYESIAN | _MLP | kwargs)
