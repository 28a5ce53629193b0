"""Networks from the papers, one family per file. Importing this registers them with timm."""

from retinoscope.models.families import (
    alternet,
    broadcast_vit,
    coat_cifar,
    convit_cifar,
    convolutional_vit,
    eigen_vit,
    levit_cifar,
    preact_resnet,
    resnet20,
    resnet_cifar,
    transformers_cifar,
    vgg_cifar,
)

FAMILIES = (
    resnet20, resnet_cifar, preact_resnet, alternet, vgg_cifar, transformers_cifar, convit_cifar,
    levit_cifar, coat_cifar, convolutional_vit, eigen_vit,
    broadcast_vit,
)  # fmt: skip
"""The modules whose models are registered with timm."""


def own_models() -> list[str]:
    """The names of our own models.

    Example:
        >>> "alternet50" in own_models()
        True
    """
    return sorted(name for family in FAMILIES for name in family.default_cfgs)
