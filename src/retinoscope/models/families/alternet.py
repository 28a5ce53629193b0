"""AlterNet: attention at the end of each stage of a ResNet (Park & Kim, 2022, arXiv:2202.06709).

A pre-activation ResNet in which every second block from the end of a stage is window attention
instead of convolutions. From AlterNet-34 on, the last stage has one block more than in the ResNet,
so that both kinds alternate evenly. ``msas`` is the number of attention blocks per stage:
0, 1, 1, 2 for CIFAR (fig. 11), 0, 1, 3, 2 for ImageNet (fig. D.5), and 0, 1, 1, 1 if stages have
two blocks.

``head_width`` is 64 as in the authors' code; with 32, an attention block costs about as much as the
convolutions it replaces. ``tables="shared"`` uses one table of biases for all heads, as the
authors' code does.
"""

from __future__ import annotations

from typing import Any

from timm.models import generate_default_cfgs, register_model

from retinoscope.models.families.preact_resnet import (
    CIFAR,
    CIFAR_CFG,
    IMAGENET_CFG,
    MICRO,
    MICRO_CFG,
    PreActResNet,
    create,
)
from retinoscope.zoo import with_weights

_18 = {"layers": (2, 2, 2, 2), "block": "basic", "msas": (0, 1, 1, 1)}
_34 = {"layers": (3, 4, 6, 4), "block": "basic", "msas": (0, 1, 3, 2)}
_50 = {"layers": (3, 4, 6, 4), "msas": (0, 1, 3, 2)}
_101 = {"layers": (3, 4, 23, 4), "msas": (0, 1, 3, 2)}
_152 = {"layers": (3, 8, 36, 4), "msas": (0, 1, 3, 2)}
_FEW = CIFAR | {"msas": (0, 1, 1, 2)}

default_cfgs = generate_default_cfgs(with_weights({
    "alternet18": IMAGENET_CFG, "alternet34": IMAGENET_CFG, "alternet50": IMAGENET_CFG,
    "alternet101": IMAGENET_CFG, "alternet152": IMAGENET_CFG, "alternet18_cifar": CIFAR_CFG,
    "alternet34_cifar": CIFAR_CFG, "alternet50_cifar": CIFAR_CFG, "alternet101_cifar": CIFAR_CFG,
    "alternet152_cifar": CIFAR_CFG, "micro_alternet": MICRO_CFG,
}))  # fmt: skip


@register_model
def alternet18(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """10.0 M parameters."""
    return create("alternet18", pretrained, _18, **kwargs)


@register_model
def alternet34(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """22.8 M parameters."""
    return create("alternet34", pretrained, _34, **kwargs)


@register_model
def alternet50(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """35.9 M parameters."""
    return create("alternet50", pretrained, _50, **kwargs)


@register_model
def alternet101(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """54.9 M parameters."""
    return create("alternet101", pretrained, _101, **kwargs)


@register_model
def alternet152(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """70.6 M parameters."""
    return create("alternet152", pretrained, _152, **kwargs)


@register_model
def alternet18_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """9.5 M parameters."""
    return create("alternet18_cifar", pretrained, _18 | CIFAR, **kwargs)


@register_model
def alternet34_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """23.0 M parameters."""
    return create("alternet34_cifar", pretrained, _34 | _FEW, **kwargs)


@register_model
def alternet50_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """33.0 M parameters."""
    return create("alternet50_cifar", pretrained, _50 | _FEW, **kwargs)


@register_model
def alternet101_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """52.0 M parameters."""
    return create("alternet101_cifar", pretrained, _101 | _FEW, **kwargs)


@register_model
def alternet152_cifar(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """67.7 M parameters."""
    return create("alternet152_cifar", pretrained, _152 | _FEW, **kwargs)


@register_model
def micro_alternet(pretrained: bool = False, **kwargs: Any) -> PreActResNet:
    """0.12 M parameters, images of 32 × 32 pixels, 10 classes; small enough for a CPU."""
    return create("micro_alternet", pretrained, MICRO | {"msas": (0, 1, 1, 2)}, **kwargs)
