"""The image settings of our models, in the format of timm's configurations."""

from __future__ import annotations

from typing import Any

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
"""Mean and standard deviation over all pixels of the training images."""


def cifar_cfg(
    first_conv: str | None,
    classifier: str | tuple[str, ...] | None,
    classes: int = 100,
    **more: Any,
) -> dict[str, Any]:
    """The default timm configuration of a model for images of 32 × 32 pixels.

    Args:
        first_conv: Path of the layer that takes the image.
        classifier: Path of the layer, or layers, that output the logits.
        classes: Number of classes. 100 selects mean and standard deviation of CIFAR-100, any other
            number those of CIFAR-10.
        more: Further entries, such as ``fixed_input_size``.
    """
    mean, std = (CIFAR100_MEAN, CIFAR100_STD) if classes == 100 else (CIFAR10_MEAN, CIFAR10_STD)
    return {
        "url": "", "num_classes": classes, "input_size": (3, 32, 32), "pool_size": None,
        "crop_pct": 1.0, "interpolation": "bicubic", "mean": mean, "std": std,
        "first_conv": first_conv, "classifier": classifier, **more,
    }  # fmt: skip
