"""Pre-activation ResNets (He et al., 2016, arXiv:1603.05027), optionally with attention blocks.

Norm and activation come before each convolution, so that the residual stream is never activated.
Stage s has ``layers[s]`` blocks, of which ``msas[s]`` are attention: every second one from the end
of the stage (Park & Kim, 2022, arXiv:2202.06709, fig. 11). With none, it is the plain network.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import SelectAdaptivePool2d
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from retinoscope.layers.attention_block import AttentionBlock
from retinoscope.layers.local_attention import Tables
from retinoscope.layers.preact_block import Convolutions, PreActBlock, conv
from retinoscope.layers.smoothing import Smooth
from retinoscope.models.families.configuration import cifar_cfg
from retinoscope.models.families.intermediates import check_maps
from retinoscope.zoo import with_weights

Stem = Literal["imagenet", "cifar"]


class PreActResNet(nn.Module):
    """Four stages of pre-activation blocks, followed by BN, ReLU, pooling and a linear layer.

    ``output_stride`` limits the total stride of the last maps. Stages that would exceed it dilate
    their kernels instead of subsampling, as in DeepLab (Chen et al., 2017, arXiv:1706.05587).
    Attention windows keep their number of positions.
    """

    def __init__(
        self,
        layers: Sequence[int] = (3, 4, 6, 3),
        block: Convolutions = "bottleneck",
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        msas: Sequence[int] = (0, 0, 0, 0),
        heads: Sequence[int] = (3, 6, 12, 24),
        head_width: int = 64,
        window: int = 7,
        tables: Tables = "per_head",
        smoothing: Sequence[int] = (0, 0, 0, 0),
        mc_dropout: float = 0.0,
        always: bool = True,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        output_stride: int = 32,
    ) -> None:
        super().__init__()
        _check_stages(layers, widths=widths, msas=msas, heads=heads, smoothing=smoothing)
        self.drop_rate = drop_rate
        self.grad_checkpointing = False
        small = stem == "cifar"
        self.conv1 = conv(in_chans, widths[0], 3 if small else 7, 1 if small else 2)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        channels, reduction, dilation = widths[0], 1 if small else 4, 1
        _check_stride(output_stride, reduction)
        self.feature_info = [
            {"num_chs": channels, "reduction": 1 if small else 2, "module": "conv1"}
        ]
        expansion = 4 if block == "bottleneck" else 1
        convolutions = partial(PreActBlock, kind=block, mc_dropout=mc_dropout, always=always)
        attention = partial(
            AttentionBlock, reduction=expansion, head_width=head_width, window=window, tables=tables
        )
        rates = iter(torch.linspace(0, drop_path_rate, sum(layers), device="cpu").tolist())
        for stage, (blocks, width) in enumerate(zip(layers, widths, strict=True)):
            made = nn.Sequential()
            first = 2 if stage and 2 * reduction <= output_stride else 1
            for place in range(blocks):
                if _is_msa(place, blocks, msas[stage]):
                    made.append(attention(channels, heads=heads[stage], drop_path=next(rates)))
                else:
                    stride = 1 if place else first
                    made.append(convolutions(channels, width, stride=stride, drop_path=next(rates)))
                    channels, reduction = width * expansion, reduction * stride
            if stage and first == 1:
                dilation = _dilate(made, dilation)
            if smoothing[stage]:
                made.add_module("smooth", Smooth())
            name = f"layer{stage + 1}"
            self.add_module(name, made)
            self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": name})
        self.stages = [info["module"] for info in self.feature_info[1:]]
        self.num_features = self.head_hidden_size = channels
        self.norm = nn.BatchNorm2d(channels)
        self.pool_type = global_pool
        self.reset_classifier(num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_classifier(self) -> nn.Module:
        """The last linear layer."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head and keep everything else."""
        self.num_classes = num_classes
        self.pool_type = self.pool_type if global_pool is None else global_pool
        flatten = bool(self.pool_type)
        self.global_pool = SelectAdaptivePool2d(pool_type=self.pool_type, flatten=flatten)
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the states between blocks for the backward pass; recompute the rest."""
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns by which timm groups parameters by depth, for layer-wise learning rates."""
        blocks = r"^layer(\d+)" if coarse else r"^layer(\d+)\.(\d+)"
        return {"stem": r"^conv1", "blocks": [(blocks, None), (r"^norm", (99999,))]}

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the last maps and the selected states after stem and stages, or only the latter.

        Args:
            x: Images (N, C, H, W).
            indices: Indices of the five states; a number n selects the last n, None all.
            norm: Whether the state of the last stage is normalised and activated as for the head.
            stop_early: Whether to skip the stages after the last selected one.
            output_fmt: Must be ``NCHW``.
            intermediates_only: Whether to omit the last maps.
        """
        check_maps(output_fmt)
        wanted, last = feature_take_indices(1 + len(self.stages), indices)
        states = [self.conv1(x)]
        x = self.maxpool(states[0])
        for stage in self.stages[: last if stop_early else None]:
            x = self._stage(stage, x)
            states.append(x)
        if len(states) == len(self.feature_info):
            x = self._normalised(x)
            states[-1] = x if norm else states[-1]
        found = [states[place] for place in wanted]
        return found if intermediates_only else (x, found)

    def prune_intermediate_layers(
        self,
        indices: int | list[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove the stages after the last selected state; return the selected indices."""
        wanted, last = feature_take_indices(1 + len(self.stages), indices)
        for stage in self.stages[last:]:
            self.set_submodule(stage, nn.Identity())
        self.stages = self.stages[:last]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return wanted

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature maps, normalised and activated."""
        x = self.maxpool(self.conv1(x))
        for stage in self.stages:
            x = self._stage(stage, x)
        return self._normalised(x) if len(self.stages) == len(self.feature_info) - 1 else x

    def _normalised(self, x: Tensor) -> Tensor:
        """The maps of the last stage as the head sees them; those of others have no norm."""
        return F.relu(self.norm(x))

    def _stage(self, name: str, x: Tensor) -> Tensor:
        blocks = self.get_submodule(name)
        if self.grad_checkpointing and self.training:
            return checkpoint_sequential(blocks, len(blocks), x, use_reentrant=False)  # type: ignore[arg-type]
        return blocks(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The logits of feature maps."""
        x = F.dropout(self.global_pool(x), self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        return self.forward_head(self.forward_features(x))


def _is_msa(place: int, blocks: int, msas: int) -> bool:
    """Whether the block at index ``place`` is attention: every second one from the stage's end."""
    behind = blocks - 1 - place
    return behind % 2 == 0 and behind // 2 < msas


def _check_stages(layers: Sequence[int], **given: Sequence[int]) -> None:
    for name, values in given.items():
        if len(values) != len(layers):
            raise ValueError(
                f"{name} has a number per stage: {len(layers)} for layers {tuple(layers)}; "
                f"got {tuple(values)}."
            )
    for stage, (blocks, msas) in enumerate(zip(layers, given["msas"], strict=True), 1):
        if msas < 0 or 2 * msas > blocks:
            raise ValueError(
                f"Stage {stage} has {blocks} blocks, of which at most {blocks // 2} can be "
                f"attention: they alternate, and a convolution comes first. Asked for: {msas}. "
                f"Give it more blocks: layers={tuple(layers)} now."
            )


def _check_stride(asked: int, stem: int) -> None:
    if asked < stem or asked & (asked - 1):
        raise ValueError(
            f"output_stride is a power of two, and at least the stem's {stem}; got {asked}."
        )


def _dilate(stage: nn.Module, dilation: int) -> int:
    """Dilate the kernels of a stage without stride, to keep the receptive field it has with stride.

    Its first kernel keeps the dilation of the previous stage; all others get twice that dilation,
    which is returned.
    """
    kernels = [
        module
        for module in stage.modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)
    ]
    for place, kernel in enumerate(kernels):
        apart = 2 * dilation if place else dilation
        kernel.dilation = kernel.padding = (apart, apart)
    return 2 * dilation


def create(variant: str, pretrained: bool, defaults: dict[str, Any], **kwargs: Any) -> PreActResNet:
    """Build the network ``variant``; ``kwargs`` override its defaults."""
    return build_model_with_cfg(PreActResNet, variant, pretrained, **defaults | kwargs)


IMAGENET_CFG: dict[str, Any] = {
    "url": "", "num_classes": 1000, "input_size": (3, 224, 224), "pool_size": (7, 7),
    "crop_pct": 0.875, "interpolation": "bicubic", "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD, "first_conv": "conv1", "classifier": "fc",
}  # fmt: skip
CIFAR_CFG = cifar_cfg("conv1", "fc")
MICRO_CFG = cifar_cfg("conv1", "fc", classes=10)
CIFAR: dict[str, Any] = {"stem": "cifar", "window": 4}
"""A stem of one 3×3 convolution without stride, and windows of 4×4 positions."""
MICRO: dict[str, Any] = CIFAR | {
    "layers": (2, 2, 4, 4), "widths": (8, 16, 24, 32), "block": "basic", "heads": (2, 4, 6, 8),
    "head_width": 16,
}  # fmt: skip

default_cfgs = generate_default_cfgs(with_weights({
    "preact_resnet18": IMAGENET_CFG, "preact_resnet34": IMAGENET_CFG,
    "preact_resnet50": IMAGENET_CFG, "preact_resnet101": IMAGENET_CFG,
    "preact_resnet152": IMAGENET_CFG, "preact_resnet18_cifar": CIFAR_CFG,
    "preact_resnet50_cifar": CIFAR_CFG, "preact_resnet50_smooth_cifar": CIFAR_CFG,
    "preact_resnet50_mcdo_cifar": CIFAR_CFG, "micro_preact_resnet": MICRO_CFG,
}))  # fmt: skip


@register_model
def preact_resnet18(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """11.7 M parameters."""
    defaults = {"layers": (2, 2, 2, 2), "block": "basic"}
    return create("preact_resnet18", pretrained, defaults, **kwargs)


@register_model
def preact_resnet34(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """21.8 M parameters."""
    defaults = {"layers": (3, 4, 6, 3), "block": "basic"}
    return create("preact_resnet34", pretrained, defaults, **kwargs)


@register_model
def preact_resnet50(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """25.5 M parameters."""
    return create("preact_resnet50", pretrained, {"layers": (3, 4, 6, 3)}, **kwargs)


@register_model
def preact_resnet101(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """44.5 M parameters."""
    return create("preact_resnet101", pretrained, {"layers": (3, 4, 23, 3)}, **kwargs)


@register_model
def preact_resnet152(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """60.2 M parameters."""
    return create("preact_resnet152", pretrained, {"layers": (3, 8, 36, 3)}, **kwargs)


@register_model
def preact_resnet18_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """11.2 M parameters."""
    defaults = CIFAR | {"layers": (2, 2, 2, 2), "block": "basic"}
    return create("preact_resnet18_cifar", pretrained, defaults, **kwargs)


@register_model
def preact_resnet50_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """23.7 M parameters."""
    return create("preact_resnet50_cifar", pretrained, CIFAR, **kwargs)


@register_model
def preact_resnet50_smooth_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """Spatial smoothing after the first three stages (Park & Kim, 2022, arXiv:2105.12639)."""
    defaults = CIFAR | {"smoothing": (1, 1, 1, 0)}
    return create("preact_resnet50_smooth_cifar", pretrained, defaults, **kwargs)


@register_model
def preact_resnet50_mcdo_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """Dropout of 0.3 before the last convolution of every block, also in eval mode."""
    defaults = CIFAR | {"mc_dropout": 0.3}
    return create("preact_resnet50_mcdo_cifar", pretrained, defaults, **kwargs)


@register_model
def micro_preact_resnet(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """0.12 M parameters, images of 32 × 32 pixels, 10 classes; small enough for a CPU."""
    return create("micro_preact_resnet", pretrained, MICRO, **kwargs)
