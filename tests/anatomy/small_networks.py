"""Small networks at order one with their replays, made once; and ways to replace values."""

from __future__ import annotations

from functools import cache

import timm
import torch
from torch import nn

from retinoscope.anatomy.replay import replay
from retinoscope.models.order_one import draw_at_order_one

VIT = dict(img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=2, num_classes=5)


class Own(nn.Module):
    """A user's network: a residual convolution, patches, attention by einsum, an MLP, one token."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.heads = heads
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.embed, self.token = nn.Conv2d(8, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))
        self.head = nn.Linear(width, 5)
        self.off, self.changed = (), None
        """What a test switches off, and how it changes the output (N, positions, heads, …)."""

    def mixed(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(self.norm(x)).chunk(3, -1))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.5).softmax(-1)
        out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.proj((self.changed(out) if self.changed else out).flatten(2))

    def forward(self, x):
        x = self.stem(x)
        x = x if "conv" in self.off else x + (x if "kernel" in self.off else self.conv(x)).relu()
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x if "attention" in self.off else x + self.mixed(x)
        x = x if "mlp" in self.off else x + self.mlp(x)
        return self.head(x[:, 0])


class Inside(nn.Module):
    """Two residual units in a branch that is concatenated, so that their block is not residual."""

    def __init__(self):
        super().__init__()
        self.stem, self.into = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1)
        self.a, self.b = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.join, self.head = nn.Conv2d(10, 4, 3, padding=1), nn.Linear(4, 5)
        self.off = ()

    def forward(self, x):
        x = self.stem(x)
        y = self.into(x).relu()
        y = y if "a" in self.off else y + self.a(y).relu()
        y = y if "b" in self.off else y + self.b(y).relu()
        return self.head(self.join(torch.cat([x, y], 1)).mean((2, 3)))


@cache
@torch.inference_mode(False)  # other tests that share it may need gradients
def network(name):
    """A small network at order one, with its replay, its size, and units with changed forwards."""
    options, size = {
        "vit": ({"model_name": "vit_tiny_patch16_224", **VIT}, 16),
        "unfused": ({"model_name": "vit_tiny_patch16_224", **VIT}, 16),
        "swin": (dict(model_name="swin_tiny_patch4_window7_224", img_size=32, patch_size=2,
                      window_size=4, embed_dim=12, depths=(2, 1), num_heads=(3, 6)), 32),
        "resnet": (dict(model_name="resnet50", layers=(2, 1, 1, 2), channels=(4, 8, 8, 16)), 32),
        "convnext": (dict(model_name="convnext_tiny", depths=(1, 1, 2, 1),
                          dims=(8, 16, 16, 24)), 64),
        "own": (None, 16),
    }[name]  # fmt: skip
    model = Own() if options is None else timm.create_model(**options)
    if name == "unfused":
        for block in model.blocks:
            block.attn.fused_attn = False
    model = draw_at_order_one(model).eval()
    return model, replay(model, size, name=name), size


def images(name, count=3):
    size = network(name)[2]
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(3))


def close(found, expected, whole, what):
    scale = whole.abs().max()
    assert (found - expected).abs().max() <= 1e-6 * scale, what
    assert (found - whole).abs().max() > 1e-3 * scale, f"{what} did not matter"


def zeros(values):
    return values.new_zeros(1)


def turned(values):
    return values.roll(1, 0)


def mean(values):
    return values.mean(0, keepdim=True)
