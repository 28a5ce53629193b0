"""ViT⁺ and ViT⁻: vision transformers whose attention can only smooth, or only sharpen.

Dovonon et al., 2024, "Setting the Record Straight on Transformer Oversmoothing", arXiv:2401.04301.
timm's ViT with another attention: the eigenvalues of W_V W_proj, the product of value and output
weights, all have the same sign. Names with ``authors`` multiply the factors in the order of the
authors' code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn

from retinoscope.layers.eigen_attention import EigenAttention, Form, Sign
from retinoscope.models.families.configuration import cifar_cfg


def eigen_block(sign: Sign, form: Form, **options: Any) -> Block:
    """A timm block with its attention replaced; ``options`` are the arguments of timm's block."""
    refused = [name for name in ("qkv_bias", "qk_norm", "scale_attn_norm") if options.get(name)]
    if refused:
        raise ValueError(
            f"{', '.join(refused)}: the attention of ViT⁺ and ViT⁻ has neither biases nor norms. "
            "Leave it out, or use timm's own ViT."
        )
    block = Block(**options)
    kept = {
        name: options[name]
        for name in ("attn_drop", "proj_drop", "device", "dtype")
        if name in options
    }
    block.attn = EigenAttention(options["dim"], options["num_heads"], sign, form, **kept)
    return block


def _eigen_vit(
    variant: str, pretrained: bool, sign: Sign, form: Form, **options: Any
) -> VisionTransformer:
    options.setdefault("qkv_bias", False)
    return build_model_with_cfg(
        VisionTransformer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        block_fn=partial(eigen_block, sign, form),
        **options,
    )


_TINY = {"patch_size": 2, "embed_dim": 192, "depth": 12, "num_heads": 3}
_MICRO = {"patch_size": 4, "embed_dim": 48, "depth": 5, "num_heads": 3}
_BASE = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}

_CIFAR100 = cifar_cfg("patch_embed.proj", "head", fixed_input_size=True)
_CIFAR10 = cifar_cfg("patch_embed.proj", "head", classes=10, fixed_input_size=True)
_IMAGENET = {
    "url": "", "num_classes": 1000, "input_size": (3, 224, 224), "pool_size": None,
    "crop_pct": 0.9, "interpolation": "bicubic", "fixed_input_size": True,
    "mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj", "classifier": "head",
}  # fmt: skip

default_cfgs = generate_default_cfgs({
    "vit_plus_tiny_patch2_cifar": _CIFAR100,
    "vit_minus_tiny_patch2_cifar": _CIFAR100,
    "vit_plus_authors_tiny_patch2_cifar": _CIFAR100,
    "vit_minus_authors_tiny_patch2_cifar": _CIFAR100,
    "vit_plus_base_patch16_224": _IMAGENET,
    "vit_minus_base_patch16_224": _IMAGENET,
    "micro_vit_plus": _CIFAR10,
    "micro_vit_minus": _CIFAR10,
})  # fmt: skip


@register_model
def vit_plus_tiny_patch2_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT⁺-Ti for CIFAR-100, 4.96 M parameters."""
    name = "vit_plus_tiny_patch2_cifar"
    return _eigen_vit(name, pretrained, "+", "symmetric", **_TINY | kwargs)


@register_model
def vit_minus_tiny_patch2_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT⁻-Ti for CIFAR-100, 4.96 M parameters."""
    name = "vit_minus_tiny_patch2_cifar"
    return _eigen_vit(name, pretrained, "-", "symmetric", **_TINY | kwargs)


@register_model
def vit_plus_authors_tiny_patch2_cifar(
    pretrained: bool = False, **kwargs: Any
) -> VisionTransformer:
    """ViT⁺-Ti for CIFAR-100 as in the authors' code, 4.96 M parameters."""
    name = "vit_plus_authors_tiny_patch2_cifar"
    return _eigen_vit(name, pretrained, "+", "authors", **_TINY | kwargs)


@register_model
def vit_minus_authors_tiny_patch2_cifar(
    pretrained: bool = False, **kwargs: Any
) -> VisionTransformer:
    """ViT⁻-Ti for CIFAR-100 as in the authors' code, 4.96 M parameters."""
    name = "vit_minus_authors_tiny_patch2_cifar"
    return _eigen_vit(name, pretrained, "-", "authors", **_TINY | kwargs)


@register_model
def vit_plus_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT⁺-B/16 for ImageNet, 79.46 M parameters."""
    name = "vit_plus_base_patch16_224"
    return _eigen_vit(name, pretrained, "+", "symmetric", **_BASE | kwargs)


@register_model
def vit_minus_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT⁻-B/16 for ImageNet, 79.46 M parameters."""
    name = "vit_minus_base_patch16_224"
    return _eigen_vit(name, pretrained, "-", "symmetric", **_BASE | kwargs)


@register_model
def micro_vit_plus(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """A ViT⁺ that trains on a laptop, 0.14 M parameters."""
    return _eigen_vit("micro_vit_plus", pretrained, "+", "symmetric", **_MICRO | kwargs)


@register_model
def micro_vit_minus(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """A ViT⁻ that trains on a laptop, 0.14 M parameters."""
    return _eigen_vit("micro_vit_minus", pretrained, "-", "symmetric", **_MICRO | kwargs)
