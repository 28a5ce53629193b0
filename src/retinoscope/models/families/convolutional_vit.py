"""Vision transformers whose attention is limited to a window around each position.

Park & Kim, 2022, "How Do Vision Transformers Work?", arXiv:2202.06709, figure 7: does attention
need to be global? This is a ViT on maps, without a class token, in which each query sees κ × κ
positions. The global variant differs only in the mask, so that a comparison shows the effect of κ
alone. The authors' code calls it ConViT; the ConViT of d'Ascoli et al. is a different model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from timm.layers import DropPath, LayerNorm2d, Mlp, NormMlpClassifierHead, trunc_normal_
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.nn import functional as F

from retinoscope.layers.neighbourhood_attention import NeighbourhoodAttention, Outside
from retinoscope.models.families.configuration import cifar_cfg
from retinoscope.models.families.intermediates import check_maps


class Block(nn.Module):
    """Attention and MLP on maps, each with a layer norm before it and a skip connection."""

    def __init__(
        self, dim: int, attention: nn.Module, mlp: nn.Module, drop_path: float, **placed: Any
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm2d(dim, **placed)
        self.attn = attention
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = LayerNorm2d(dim, **placed)
        self.mlp = mlp
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The state (N, C, H, W) after the block."""
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class ConvolutionalVit(nn.Module):
    """Patches, learned positions, blocks with window attention; then mean, norm, linear layer.

    Arguments are those of timm's ``VisionTransformer``, and:

    Args:
        kernel: Side κ of the window, odd; None for global attention.
        outside: Content of windows beyond the border; see ``NeighbourhoodAttention``.
        img_size: Side of the images, or (height, width), in pixels; other sizes are not accepted.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 32,
        patch_size: int = 4,
        in_chans: int = 3,
        num_classes: int = 100,
        global_pool: str = "avg",
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        kernel: int | None = 3,
        outside: Outside = "absent",
        qkv_bias: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        self.img_size, grid = _grid(img_size, patch_size)
        self.num_classes, self.in_chans, self.grad_checkpointing = num_classes, in_chans, False
        self.num_features = self.head_hidden_size = self.embed_dim = dim = embed_dim
        self.patch_embed = nn.Conv2d(in_chans, dim, patch_size, patch_size, **placed)
        self.pos_embed = nn.Parameter(torch.empty(1, dim, *grid, **placed))
        self.pos_drop = nn.Dropout(pos_drop_rate)
        blocks, self.feature_info = [], []
        for index in range(depth):
            attention = NeighbourhoodAttention(
                dim, num_heads, kernel, qkv_bias, outside, attn_drop_rate, proj_drop_rate, **placed
            )
            mlp = Mlp(dim, int(mlp_ratio * dim), drop=proj_drop_rate, use_conv=True, **placed)
            drop_path = drop_path_rate * index / max(depth - 1, 1)
            blocks.append(Block(dim, attention, mlp, drop_path, **placed))
            self.feature_info.append(
                {"module": f"blocks.{index}", "num_chs": dim, "reduction": patch_size}
            )
        self.blocks = nn.Sequential(*blocks)
        self.head = NormMlpClassifierHead(dim, num_classes, None, global_pool, drop_rate, **placed)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise positions, blocks and head as in timm's ViT, with std = 0.02."""
        trunc_normal_(self.pos_embed, std=0.02)
        for module in [*self.blocks.modules(), *self.head.modules()]:
            if isinstance(module, nn.Conv2d | nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters without weight decay."""
        return {"pos_embed"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set whether blocks are recomputed in the backward pass, to save memory."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The last linear layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head and keep everything else."""
        self.num_classes = num_classes
        self.head.reset(num_classes, global_pool)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove what :meth:`forward_intermediates` does not need; return the selected indices."""
        taken, last = feature_take_indices(len(self.blocks), cast(Any, indices))
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.head.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the last maps and those after the selected blocks, or only the latter.

        Args:
            x: Images (N, C, H, W).
            indices: Indices of blocks; a number n selects the last n, None all.
            norm: Whether to apply the head's norm to the maps of the selected blocks.
            stop_early: Whether to skip the blocks after the last selected one.
            output_fmt: Must be ``NCHW``.
            intermediates_only: Whether to omit the last maps.
        """
        check_maps(output_fmt)
        taken, last = feature_take_indices(len(self.blocks), cast(Any, indices))
        x, found = self._embed(x), []
        for index, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = self._run(block, x)
            if index in taken:
                found.append(self.head.norm(x) if norm else x)
        return found if intermediates_only else (x, found)

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature maps (N, C, H, W)."""
        x = self._embed(x)
        for block in self.blocks:
            x = self._run(block, x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The logits of feature maps."""
        return self.head(x, pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        return self.forward_head(self.forward_features(x))

    def _embed(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if (height, width) != self.img_size:
            built, given = "×".join(map(str, self.img_size)), f"{height}×{width}"
            raise ValueError(
                f"This model was built for images of {built}, one position embedding per patch; "
                f"these are {given}. Build it with img_size=({height}, {width}), or resize them."
            )
        return self.pos_drop(self.patch_embed(x) + self.pos_embed)

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x) if self.grad_checkpointing else block(x)


def _grid(img_size: int | tuple[int, int], patch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The height and width of the images, in pixels and in patches."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if min(height, width) < patch or height % patch or width % patch:
        raise ValueError(
            f"Images of {height}×{width} cannot be cut into patches of {patch}×{patch}. Take a "
            "patch_size that divides both sides of img_size."
        )
    return (height, width), (height // patch, width // patch)


def resample_positions(state: Mapping[str, Tensor], model: ConvolutionalVit) -> dict[str, Tensor]:
    """``state`` with its position embedding interpolated to the size ``model`` was built for."""
    size, found = model.pos_embed.shape[-2:], state.get("pos_embed")
    if found is None or found.shape[-2:] == size:
        return dict(state)
    resampled = F.interpolate(found.float(), size, mode="bicubic", antialias=True)
    return {**state, "pos_embed": resampled.to(found.dtype)}


def _convolutional_vit(variant: str, pretrained: bool, **options: Any) -> ConvolutionalVit:
    return build_model_with_cfg(
        ConvolutionalVit,
        variant,
        pretrained,
        pretrained_filter_fn=resample_positions,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **options,
    )


_TINY = {"patch_size": 4, "embed_dim": 192, "depth": 12, "num_heads": 3}
_MICRO = {"patch_size": 4, "embed_dim": 48, "depth": 5, "num_heads": 3}

_CIFAR100 = cifar_cfg("patch_embed", "head.fc", fixed_input_size=True)
_CIFAR10 = cifar_cfg("patch_embed", "head.fc", classes=10, fixed_input_size=True)
default_cfgs = generate_default_cfgs({
    "vit_tiny_patch4_conv3_cifar": _CIFAR100,
    "vit_tiny_patch4_conv5_cifar": _CIFAR100,
    "vit_tiny_patch4_convglobal_cifar": _CIFAR100,
    "micro_vit_conv3": _CIFAR10,
    "micro_vit_conv5": _CIFAR10,
    "micro_vit_convglobal": _CIFAR10,
})  # fmt: skip


@register_model
def vit_tiny_patch4_conv3_cifar(pretrained: bool = False, **kwargs: Any) -> ConvolutionalVit:
    """Windows of 3 × 3 on maps of 8 × 8, 5.37 M parameters."""
    options = {**_TINY, "kernel": 3, **kwargs}
    return _convolutional_vit("vit_tiny_patch4_conv3_cifar", pretrained, **options)


@register_model
def vit_tiny_patch4_conv5_cifar(pretrained: bool = False, **kwargs: Any) -> ConvolutionalVit:
    """Windows of 5 × 5 on maps of 8 × 8, 5.37 M parameters."""
    options = {**_TINY, "kernel": 5, **kwargs}
    return _convolutional_vit("vit_tiny_patch4_conv5_cifar", pretrained, **options)


@register_model
def vit_tiny_patch4_convglobal_cifar(pretrained: bool = False, **kwargs: Any) -> ConvolutionalVit:
    """Global attention on maps of 8 × 8 (kernel 8 in the paper), 5.37 M parameters."""
    options = {**_TINY, "kernel": None, **kwargs}
    return _convolutional_vit("vit_tiny_patch4_convglobal_cifar", pretrained, **options)


@register_model
def micro_vit_conv3(pretrained: bool = False, **kwargs: Any) -> ConvolutionalVit:
    """Windows of 3 × 3, small enough for a laptop, 0.15 M parameters."""
    return _convolutional_vit("micro_vit_conv3", pretrained, **{**_MICRO, "kernel": 3, **kwargs})


@register_model
def micro_vit_conv5(pretrained: bool = False, **kwargs: Any) -> ConvolutionalVit:
    """Windows of 5 × 5, small enough for a laptop, 0.15 M parameters."""
    return _convolutional_vit("micro_vit_conv5", pretrained, **{**_MICRO, "kernel": 5, **kwargs})


@register_model
def micro_vit_convglobal(pretrained: bool = False, **kwargs: Any) -> ConvolutionalVit:
    """Global attention, small enough for a laptop, 0.15 M parameters."""
    options = {**_MICRO, "kernel": None, **kwargs}
    return _convolutional_vit("micro_vit_convglobal", pretrained, **options)
