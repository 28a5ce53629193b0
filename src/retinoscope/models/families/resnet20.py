"""ResNets for images of 32 × 32 pixels (He et al., 2016, arXiv:1512.03385, section 4.2).

One convolution, then three stages of 16, 32 and 64 channels. With n blocks per stage, the network
has 6n + 2 layers.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from retinoscope.models.families.configuration import cifar_cfg


class Block(nn.Module):
    """Two 3×3 convolutions and a skip connection, which is projected if the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.act2 = nn.ReLU(inplace=True)
        self.downsample = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """The state after the block."""
        branch = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(branch + self.downsample(x))


class CifarResNet(nn.Module):
    """Three stages of residual blocks, followed by pooling and a linear classifier."""

    def __init__(
        self,
        depth: int = 20,
        num_classes: int = 10,
        in_chans: int = 3,
        widths: tuple[int, ...] = (16, 32, 64),
        global_pool: str = "avg",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if (depth - 2) % 6:
            raise ValueError(f"A CIFAR ResNet has 6n + 2 layers; got {depth}.")
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = widths[-1]
        self.drop_rate = drop_rate
        self.conv1 = nn.Conv2d(in_chans, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act1 = nn.ReLU(inplace=True)
        channels, self.feature_info = widths[0], []
        for stage, width in enumerate(widths):
            first = Block(channels, width, 1 if stage == 0 else 2)
            rest = [Block(width, width, 1) for _ in range((depth - 2) // 6 - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
            self.feature_info.append(
                {"num_chs": width, "reduction": 2**stage, "module": f"layer{stage + 1}"}
            )
            channels = width
        self.stages = [f"layer{stage + 1}" for stage in range(len(widths))]
        self.reset_classifier(num_classes, global_pool)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_classifier(self) -> nn.Module:
        """The last linear layer."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str = "avg") -> None:
        """Replace the head and keep everything else."""
        self.num_classes = num_classes
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.global_pool = pooled if global_pool else nn.Identity()
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature maps."""
        x = self.act1(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The logits of feature maps."""
        x = self.global_pool(x)
        if self.drop_rate:
            x = torch.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        return self.forward_head(self.forward_features(x))


default_cfgs = generate_default_cfgs({"resnet20_cifar": cifar_cfg("conv1", "fc", classes=10)})


@register_model
def resnet20_cifar(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """0.27 M parameters."""
    return build_model_with_cfg(
        CifarResNet,
        "resnet20_cifar",
        pretrained,
        feature_cfg={"out_indices": (0, 1, 2)},
        **kwargs,
    )
