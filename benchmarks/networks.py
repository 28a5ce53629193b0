"""The two networks of most benchmarks: a small CNN and a small ViT for 32 × 32 pixels."""

from __future__ import annotations

NETWORKS = {
    "resnet20_cifar": "resnet20_cifar",
    "ViT-Tiny": "vit_tiny_patch16_224:img_size=32,patch_size=4,num_classes=10",
}
"""Their names in the benchmarks, and in Retinoscope."""
