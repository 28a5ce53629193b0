"""ConViT for images of 32 × 32 pixels (d'Ascoli et al., 2021, arXiv:2103.10697).

The class is timm's. Its first blocks begin as convolutions: each head looks at one offset, and a
gate learns how far to leave that for ordinary attention. The class token joins where they end.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from timm.models.convit import ConVit
from torch import Tensor, nn

from retinoscope.models.configuration import cifar_cfg
from retinoscope.models.intermediates import IntermediateForm


class CifarConvit(ConVit):
    """ConViT with the intermediates that timm's other transformers give."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.grid_size: tuple[int, int] = tuple(self.patch_embed.grid_size)
        if self.grid_size[0] != self.grid_size[1]:
            height, width = self.grid_size
            raise ValueError(
                f"ConViT's offsets need a square grid of patches; this image gives {height}×{width}"
                ". Choose an img_size with equal sides."
            )
        for block in self.blocks:
            attention: Any = block.attn
            if block.use_gpsa:
                # timm makes this table in the first forward and keeps it as a plain attribute,
                # which .to(…) leaves behind and torch.export warns about.
                table = attention.get_rel_indices(self.num_patches)
                del attention.rel_indices
                attention.register_buffer("rel_indices", table, persistent=False)
        self.feature_info = [
            {
                "num_chs": self.embed_dim,
                "reduction": self.patch_embed.feat_ratio(),
                "module": f"blocks.{place}",
            }
            for place in range(len(self.blocks))
        ]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The states after chosen blocks, as timm's ViT gives them.

        Args:
            x: Images (N, C, H, W).
            indices: Which blocks: their places, or how many of the last; all if None.
            return_prefix_tokens: Give pairs of maps and prefix. The prefix is empty in the gated
                blocks, where there is no class token yet.
            norm: Apply the last norm to every state.
            stop_early: Compute nothing behind the last block that was asked for.
            output_fmt: ``NCHW`` for maps, ``NLC`` for tokens.
            intermediates_only: Leave out the final features.

        Returns:
            Final features and a list of states, or only the latter.
        """
        form = IntermediateForm(output_fmt, return_prefix_tokens)
        taken, last = feature_take_indices(len(self.blocks), indices)
        x = self.patch_embed(x)
        if self.use_pos_embed:
            x = x + self.pos_embed
        x = self.pos_drop(x)
        states = []
        for place, block in enumerate(self.blocks):
            if place == self.local_up_to_layer:
                x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
            x = block(x)
            if place in taken:
                prefix = int(place >= self.local_up_to_layer)
                states.append(form(self.norm(x) if norm else x, prefix, self.grid_size))
            if stop_early and place == last:
                break
        return states if intermediates_only else (self.norm(x), states)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the states at ``indices`` do not need; returns their places."""
        taken, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken


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
