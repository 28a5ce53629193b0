"""ConViT for images of 32 × 32 pixels (d'Ascoli et al., 2021, arXiv:2103.10697).

The class is timm's. Its first blocks are initialised as convolutions: each head attends to one
offset, and a learned gate mixes this with ordinary attention. The class token is added after them.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.convit import ConVit

from retinoscope.models.families.configuration import cifar_cfg


class CifarConvit(ConVit):
    """ConViT that computes its table of offsets in the constructor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        height, width = self.patch_embed.grid_size
        if height != width:
            raise ValueError(
                f"ConViT's offsets need a square grid of patches; this image gives {height}×{width}"
                ". Choose an img_size with equal sides."
            )
        for block in self.blocks:
            attention: Any = block.attn
            if block.use_gpsa:
                # timm computes this table in the first forward pass; torch.export warns about that.
                attention.rel_indices = attention.get_rel_indices(self.num_patches)


default_cfgs = generate_default_cfgs(
    {
        "convit_tiny_cifar": cifar_cfg("patch_embed.proj", "head", fixed_input_size=True),
        "micro_convit": cifar_cfg("patch_embed.proj", "head", classes=10, fixed_input_size=True),
    }
)


def _convit(variant: str, pretrained: bool, settings: dict[str, Any]) -> CifarConvit:
    out_indices = settings.pop("out_indices", 3)
    feature_cfg = {"out_indices": out_indices, "feature_cls": "getter"}
    return build_model_with_cfg(
        CifarConvit, variant, pretrained, feature_cfg=feature_cfg, **settings
    )


@register_model
def convit_tiny_cifar(pretrained: bool = False, **kwargs: Any) -> CifarConvit:
    """5.40 M parameters; ten gated and two ordinary blocks on 256 patches."""
    settings = {
        "patch_size": 2, "embed_dim": 48, "depth": 12, "num_heads": 4, "local_up_to_layer": 10,
        "locality_strength": 1.0,
    }  # fmt: skip
    return _convit("convit_tiny_cifar", pretrained, settings | kwargs)


@register_model
def micro_convit(pretrained: bool = False, **kwargs: Any) -> CifarConvit:
    """0.12 M parameters; four gated and two ordinary blocks on 64 patches."""
    settings = {
        "patch_size": 4, "embed_dim": 12, "depth": 6, "num_heads": 4, "mlp_ratio": 2,
        "local_up_to_layer": 4, "locality_strength": 1.0,
    }  # fmt: skip
    return _convit("micro_convit", pretrained, settings | kwargs)
