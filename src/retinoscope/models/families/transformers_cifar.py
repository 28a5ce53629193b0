"""ViT, PiT, Swin, Twins and MLP-Mixer for images of 32 × 32 pixels; the classes are timm's.

The sizes ``tiny`` and ``small`` are those of "How Do Vision Transformers Work?" (Park & Kim, 2022,
arXiv:2202.06709) on CIFAR-100. The authors do not give the patch sizes of Twins and Mixer; here,
Twins has one token per pixel and windows of 4 × 4 like Swin, and Mixer has patches of 2 × 2 pixels
like ViT. The ``micro`` sizes keep the typical structure of a family and train within minutes on one
CPU core.

ViT is arXiv:2010.11929, PiT 2103.16302, Swin 2103.14030, Twins 2104.13840, MLP-Mixer 2105.01601.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.mlp_mixer import MlpMixer
from timm.models.pit import PoolingVisionTransformer
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer import checkpoint_filter_fn as resize_swin
from timm.models.twins import Twins
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as resize_vit

from retinoscope.models.families.configuration import cifar_cfg
from retinoscope.zoo import with_weights


class CifarPit(PoolingVisionTransformer):
    """PiT with correct reductions in ``feature_info``.

    timm's class reports a reduction of 0 for stride 1 and then refuses ``features_only``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for stage, info in enumerate(self.feature_info):
            info["reduction"] = self.patch_embed.conv.stride[0] * 2**stage


class CifarTwins(Twins):
    """Twins with correct reductions in ``feature_info``.

    timm's class assumes patches of 4 × 4 pixels.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for stage, info in enumerate(self.feature_info):
            info["reduction"] = self.patch_embeds[0].patch_size[0] * 2**stage  # pyright: ignore
            info["module"] = f"blocks.{stage}"


def _cfgs(first_conv: str, classifier: str, *names: str) -> dict[str, Any]:
    """Configurations by model name; micro models have ten classes."""
    return with_weights({
        name: cifar_cfg(
            first_conv, classifier, 10 if name.startswith("micro_") else 100, fixed_input_size=True
        )
        for name in names
    })  # fmt: skip


default_cfgs = generate_default_cfgs(
    _cfgs(
        "patch_embed.proj", "head", "micro_vit", "micro_vit_gap",
        "vit_tiny_patch2_cifar", "vit_tiny_patch4_cifar", "vit_tiny_patch8_cifar",
        "vit_small_patch2_cifar", "vit_small_patch4_cifar", "vit_small_patch8_cifar",
        "vit_tiny_patch2_gap_cifar", "vit_tiny_patch4_gap_cifar",
    )
    | _cfgs("patch_embed.conv", "head", "pit_tiny_cifar", "micro_pit")
    | _cfgs("patch_embed.proj", "head.fc", "swin_tiny_cifar", "micro_swin")
    | _cfgs("patch_embeds.0.proj", "head", "twins_small_cifar", "micro_twins")
    | _cfgs("stem.proj", "head", "mixer_tiny_cifar", "micro_mixer")
)  # fmt: skip


_VIT_TINY = {"embed_dim": 192, "depth": 12, "num_heads": 3, "qkv_bias": False}
_VIT_SMALL = {"embed_dim": 384, "depth": 12, "num_heads": 6, "qkv_bias": False}
_VIT_MICRO = {
    "patch_size": 4, "embed_dim": 48, "depth": 6, "num_heads": 3, "mlp_ratio": 2, "qkv_bias": False,
}  # fmt: skip
_GAP = {"class_token": False, "global_pool": "avg"}


def _vit(variant: str, pretrained: bool, settings: dict[str, Any]) -> VisionTransformer:
    out_indices = settings.pop("out_indices", 3)
    return build_model_with_cfg(
        VisionTransformer,
        variant,
        pretrained,
        pretrained_filter_fn=resize_vit,
        feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
        **settings,
    )


@register_model
def vit_tiny_patch2_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """5.40 M parameters; 256 patches and a class token."""
    return _vit("vit_tiny_patch2_cifar", pretrained, _VIT_TINY | {"patch_size": 2} | kwargs)


@register_model
def vit_tiny_patch4_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """5.37 M parameters; 64 patches and a class token."""
    return _vit("vit_tiny_patch4_cifar", pretrained, _VIT_TINY | {"patch_size": 4} | kwargs)


@register_model
def vit_tiny_patch8_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """5.39 M parameters; 16 patches and a class token."""
    return _vit("vit_tiny_patch8_cifar", pretrained, _VIT_TINY | {"patch_size": 8} | kwargs)


@register_model
def vit_small_patch2_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """21.42 M parameters; 256 patches and a class token."""
    return _vit("vit_small_patch2_cifar", pretrained, _VIT_SMALL | {"patch_size": 2} | kwargs)


@register_model
def vit_small_patch4_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """21.36 M parameters; 64 patches and a class token."""
    return _vit("vit_small_patch4_cifar", pretrained, _VIT_SMALL | {"patch_size": 4} | kwargs)


@register_model
def vit_small_patch8_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """21.40 M parameters; 16 patches and a class token."""
    return _vit("vit_small_patch8_cifar", pretrained, _VIT_SMALL | {"patch_size": 8} | kwargs)


@register_model
def vit_tiny_patch2_gap_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """5.40 M parameters; classifies the mean of 256 patches."""
    settings = _VIT_TINY | _GAP | {"patch_size": 2}
    return _vit("vit_tiny_patch2_gap_cifar", pretrained, settings | kwargs)


@register_model
def vit_tiny_patch4_gap_cifar(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """5.37 M parameters; classifies the mean of 64 patches."""
    settings = _VIT_TINY | _GAP | {"patch_size": 4}
    return _vit("vit_tiny_patch4_gap_cifar", pretrained, settings | kwargs)


@register_model
def micro_vit(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """0.12 M parameters; six blocks on 64 patches and a class token."""
    return _vit("micro_vit", pretrained, _VIT_MICRO | kwargs)


@register_model
def micro_vit_gap(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """0.12 M parameters; ``micro_vit`` without a class token, classifies the mean patch."""
    return _vit("micro_vit_gap", pretrained, _VIT_MICRO | _GAP | kwargs)


def _pit(variant: str, pretrained: bool, settings: dict[str, Any]) -> CifarPit:
    out_indices = settings.pop("out_indices", (0, 1, 2))
    feature_cfg = {"out_indices": out_indices, "feature_cls": "getter"}
    return build_model_with_cfg(CifarPit, variant, pretrained, feature_cfg=feature_cfg, **settings)


@register_model
def pit_tiny_cifar(pretrained: bool = False, **kwargs: Any) -> CifarPit:
    """4.58 M parameters; overlapping patches of 2 × 2, grids of 31 × 31, 16 × 16 and 8 × 8."""
    settings = {
        "patch_size": 2, "stride": 1, "base_dims": (32, 32, 32), "depth": (2, 6, 4),
        "heads": (2, 4, 8), "mlp_ratio": 4,
    }  # fmt: skip
    return _pit("pit_tiny_cifar", pretrained, settings | kwargs)


@register_model
def micro_pit(pretrained: bool = False, **kwargs: Any) -> CifarPit:
    """0.14 M parameters; overlapping patches of 4 × 4, grids of 15 × 15, 8 × 8 and 4 × 4."""
    settings = {
        "patch_size": 4, "stride": 2, "base_dims": (8, 8, 8), "depth": (2, 2, 2),
        "heads": (2, 4, 8), "mlp_ratio": 4,
    }  # fmt: skip
    return _pit("micro_pit", pretrained, settings | kwargs)


def _swin(variant: str, pretrained: bool, settings: dict[str, Any]) -> SwinTransformer:
    out_indices = settings.pop("out_indices", tuple(range(len(settings["depths"]))))
    return build_model_with_cfg(
        SwinTransformer,
        variant,
        pretrained,
        pretrained_filter_fn=resize_swin,
        feature_cfg={"flatten_sequential": True, "out_indices": out_indices},
        **settings,
    )


@register_model
def swin_tiny_cifar(pretrained: bool = False, **kwargs: Any) -> SwinTransformer:
    """27.56 M parameters; every pixel is a token, grids of 32 × 32 down to 4 × 4.

    Stochastic depth has timm's default rate for Swin, 0.1.
    """
    settings = {
        "patch_size": 1, "window_size": 4, "embed_dim": 96, "depths": (2, 2, 6, 2),
        "num_heads": (3, 6, 12, 24), "qkv_bias": False,
    }  # fmt: skip
    return _swin("swin_tiny_cifar", pretrained, settings | kwargs)


@register_model
def micro_swin(pretrained: bool = False, **kwargs: Any) -> SwinTransformer:
    """0.14 M parameters; grids of 16 × 16, 8 × 8 and 4 × 4; no stochastic depth."""
    settings = {
        "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2, 2),
        "num_heads": (2, 4, 8), "qkv_bias": False, "drop_path_rate": 0.0,
    }  # fmt: skip
    return _swin("micro_swin", pretrained, settings | kwargs)


def _twins(variant: str, pretrained: bool, settings: dict[str, Any]) -> CifarTwins:
    out_indices = settings.pop("out_indices", len(settings["depths"]))
    feature_cfg = {"out_indices": out_indices, "feature_cls": "getter"}
    return build_model_with_cfg(
        CifarTwins, variant, pretrained, feature_cfg=feature_cfg, **settings
    )


@register_model
def twins_small_cifar(pretrained: bool = False, **kwargs: Any) -> CifarTwins:
    """23.60 M parameters; the SVT variant, grids of 32 × 32 down to 4 × 4."""
    settings = {
        "patch_size": 1, "embed_dims": (64, 128, 256, 512), "num_heads": (2, 4, 8, 16),
        "mlp_ratios": (4, 4, 4, 4), "depths": (2, 2, 10, 4), "wss": (4, 4, 4, 4),
        "sr_ratios": (8, 4, 2, 1),
    }  # fmt: skip
    return _twins("twins_small_cifar", pretrained, settings | kwargs)


@register_model
def micro_twins(pretrained: bool = False, **kwargs: Any) -> CifarTwins:
    """0.15 M parameters; grids of 16 × 16, 8 × 8 and 4 × 4, window and global attention on each."""
    settings = {
        "patch_size": 2, "embed_dims": (16, 32, 64), "num_heads": (2, 4, 8),
        "mlp_ratios": (4, 4, 4), "depths": (2, 2, 2), "wss": (4, 4, 4), "sr_ratios": (4, 2, 1),
    }  # fmt: skip
    return _twins("micro_twins", pretrained, settings | kwargs)


def _mixer(variant: str, pretrained: bool, settings: dict[str, Any]) -> MlpMixer:
    out_indices = settings.pop("out_indices", 3)
    feature_cfg = {"out_indices": out_indices, "feature_cls": "getter"}
    return build_model_with_cfg(MlpMixer, variant, pretrained, feature_cfg=feature_cfg, **settings)


@register_model
def mixer_tiny_cifar(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """4.77 M parameters; 256 patches."""
    settings = {"patch_size": 2, "num_blocks": 8, "embed_dim": 256, "mlp_ratio": (0.5, 4.0)}
    return _mixer("mixer_tiny_cifar", pretrained, settings | kwargs)


@register_model
def micro_mixer(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """0.14 M parameters; six blocks on 64 patches."""
    settings = {"patch_size": 4, "num_blocks": 6, "embed_dim": 48, "mlp_ratio": (0.5, 4.0)}
    return _mixer("micro_mixer", pretrained, settings | kwargs)
