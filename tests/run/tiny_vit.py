"""A small transformer as a file that other processes can build it from."""

import timm
from torch import nn

from retinoscope.models.order_one import draw_at_order_one


def build(seed: int = 0, img_size: int = 16) -> nn.Module:
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=img_size, patch_size=4, embed_dim=12, num_heads=3, depth=2,
        num_classes=10,
    )  # fmt: skip
    return draw_at_order_one(model, seed=seed).eval()
