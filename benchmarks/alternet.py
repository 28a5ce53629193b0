"""Speed of attention: Alter-ResNet-50 against its ResNet, and local attention against timm's.

The paper reports that Alter-ResNet-50 trains 1.20 times as fast as the pre-activation ResNet-50 on
CIFAR-100 (one RTX 2080 Ti). Here both run on a CPU with one thread, on images in memory. The bound
is the ratio of their FLOPs. Local attention takes and returns maps (N, C, H, W) in the layout of a
CNN, so timm's functions split maps into windows and merge them again for timm's attention, and its
output is stored in the same layout. Both have the same weights, and the outputs are checked to
agree first.
"""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import WindowAttention, window_partition, window_reverse
from torch import Tensor, nn

import retinoscope.models  # noqa: F401 (registers its models with timm)
from pairs import asked, time_pairs, verdict
from retinoscope.anatomy.dissect import dissect
from retinoscope.layers.local_attention import LocalAttention

CLAIMED = 1.20
BATCH = 16
SIZES = {  # channels, side of the map, window, heads, width of a head, images
    "alternet50_cifar, stage 2": (128, 16, 4, 6, 64, 16),
    "alternet50_cifar, stage 3": (256, 8, 4, 12, 64, 16),
    "alternet50_cifar, stage 4": (512, 4, 4, 24, 64, 16),
    "alternet50, stage 2": (128, 28, 7, 6, 64, 4),
    "alternet50, stage 3": (256, 14, 7, 12, 64, 4),
    "Swin-T, stage 1": (96, 56, 7, 3, 32, 2),
}


def main() -> None:
    """Print a line per comparison."""
    pairs = asked(__doc__, pairs=25).pairs
    networks(max(15, pairs * 3 // 5))
    layers(pairs)


def networks(pairs: int) -> None:
    """Throughput of the two networks, in training and in inference."""
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, 32, 32)
    resnet = timm.create_model("preact_resnet50_cifar")
    cost = dissect(resnet, 32).flops
    for width in (64, 32):
        alternet = timm.create_model("alternet50_cifar", head_width=width)
        bound = cost / dissect(alternet, 32).flops
        for called, run in (("training", train), ("inference", infer)):
            found = time_pairs(run(resnet, images), run(alternet, images), pairs)
            print(
                f"Alter-ResNet-50 with heads of width {width}, {called}: {found} times the images "
                f"per second of pre-activation ResNet-50; bound by FLOPs {bound:.3f}; the paper "
                f"reports {CLAIMED:.2f} for training"
            )


def train(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """A forward and a backward pass in training mode."""
    labels = torch.arange(len(images))

    def run() -> None:
        model.train().zero_grad()
        F.cross_entropy(model(images), labels).backward()

    return run


def infer(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """A forward pass in eval mode."""

    def run() -> Tensor:
        with torch.inference_mode():
            return model.eval()(images)

    return run


def layers(pairs: int) -> None:
    """Compare local attention with timm's, of the same size and with the same weights."""
    print("speed of local attention relative to timm's window attention (bar 1.0):")
    for called, size in SIZES.items():
        for what, training in (("inference", False), ("training", True)):
            ours, theirs = layer_pair(size, training)
            found = time_pairs(theirs, ours, pairs)
            print(f"  {called}, {what}: {found} {verdict(found.median >= 1)}")


def layer_pair(
    size: tuple[int, ...], training: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """The two layers as functions without arguments, after a check that they agree."""
    channels, side, window, heads, width, images = size
    torch.manual_seed(0)
    mine = LocalAttention(channels, heads=heads, head_width=width, window=window)
    peer = WindowAttention(channels, heads, width, window, qkv_bias=False)
    with torch.no_grad():
        peer.qkv.weight.copy_(mine.qkv.weight)
        peer.proj.load_state_dict(mine.proj.state_dict())
        peer.relative_position_bias_table.copy_(mine.relative_bias.flatten(1).T)
    x = torch.randn(images, channels, side, side, requires_grad=training)
    seed = torch.randn_like(x)
    mine.train(training), peer.train(training)

    def theirs() -> Tensor:
        windows = window_partition(x.permute(0, 2, 3, 1), (window, window))
        mixed = peer(windows.view(-1, window * window, channels))
        cut = mixed.view(-1, window, window, channels)
        maps = window_reverse(cut, (window, window), side, side)
        return maps.permute(0, 3, 1, 2).contiguous()

    torch.testing.assert_close(mine(x), theirs(), rtol=1e-4, atol=1e-5)  # other order of sums
    return once(lambda: mine(x), seed, training), once(theirs, seed, training)


def once(layer: Callable[[], Tensor], seed: Tensor, training: bool) -> Callable[[], object]:
    """One forward pass, and in training a backward pass."""

    def run() -> object:
        if training:
            return layer().backward(seed)
        with torch.inference_mode():
            return layer()

    return run


if __name__ == "__main__":
    main()
