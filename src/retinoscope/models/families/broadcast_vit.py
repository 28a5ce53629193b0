"""ViT with Context Broadcasting: the mean token is added to every token at the end of each MLP.

Hyeon-Woo et al., 2023, "Scratching Visual Transformer's Back with Uniform Attention",
arXiv:2210.08457. It is timm's ViT with the same weights by the same names. The surgery
``context_broadcasting`` changes any other network in this way.
"""

from __future__ import annotations

from typing import Any

from timm.layers import Mlp
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor

from retinoscope.layers.broadcasting import Broadcast
from retinoscope.models.families.configuration import cifar_cfg


class BroadcastMlp(Mlp):
    """timm's MLP, followed by Context Broadcasting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.broadcast = Broadcast("cb")

    def forward(self, x: Tensor) -> Tensor:
        """The output for tokens (N, positions, channels)."""
        return self.broadcast(super().forward(x))


default_cfgs = generate_default_cfgs({
    "micro_vit_cb": cifar_cfg("patch_embed.proj", "head", classes=10, fixed_input_size=True),
})  # fmt: skip


@register_model
def micro_vit_cb(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """``micro_vit`` with Context Broadcasting, 0.12 M parameters."""
    settings: dict[str, Any] = {
        "patch_size": 4, "embed_dim": 48, "depth": 6, "num_heads": 3, "mlp_ratio": 2,
        "qkv_bias": False, "mlp_layer": BroadcastMlp,
    }  # fmt: skip
    return build_model_with_cfg(
        VisionTransformer,
        "micro_vit_cb",
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **settings | kwargs,
    )
