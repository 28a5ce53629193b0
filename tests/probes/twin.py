"""Fourier and variance the slow way: hooks on the eager model, one image at a time.

Written from the models' code, without anatomy, so that a unit measured in the wrong place shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

Where = tuple[nn.Module, str, Callable[[Tensor], Tensor]]


def _first(x: Tensor | tuple[Tensor, ...]) -> Tensor:
    return x[0] if isinstance(x, tuple) else x


def same(x: Tensor) -> Tensor:
    return x


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def tokens(prefix: int) -> Callable[[Tensor], Tensor]:
    def as_maps(x: Tensor) -> Tensor:
        x = x[:, prefix:]
        side = math.isqrt(x.shape[1])
        return x.transpose(1, 2).reshape(len(x), -1, side, side)

    return as_maps


def resnet(model: nn.Module) -> Iterator[Where]:
    yield model.maxpool, "output", same
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        yield from ((block, "output", same) for block in stage)


def vit(model: nn.Module) -> Iterator[Where]:
    yield model.blocks[0], "input", tokens(1)
    for block in model.blocks:
        yield block.norm2, "input", tokens(1)
        yield block, "output", tokens(1)


def swin(model: nn.Module) -> Iterator[Where]:
    yield model.patch_embed, "output", channels_first
    for place, stage in enumerate(model.layers):
        if place:
            yield stage.downsample, "output", channels_first
        for block in stage.blocks:
            yield block.norm2, "input", tokens(0)
            yield block, "output", channels_first


def pit(model: nn.Module) -> Iterator[Where]:
    for place, stage in enumerate(model.transformers):
        if place:
            yield stage.pool, "output", same
        else:
            yield stage.blocks[0], "input", tokens(1)
        for block in stage.blocks:
            yield block.norm2, "input", tokens(1)
            yield block, "output", tokens(1)


TWINS = {
    "resnet18": resnet,
    "vit_tiny_patch16_224": vit,
    "swin_tiny_patch4_window7_224": swin,
    "pit_ti_224": pit,
}


@torch.no_grad()
def measure(
    model: nn.Module, places: list[Where], images: Tensor
) -> tuple[list[Tensor], list[float]]:
    """Mean Δ log amplitude along the diagonal, and mean variance, at each place."""
    seen: list[Tensor] = []
    hooks = []
    for module, which, as_maps in places:
        if which == "output":
            keep = lambda _, __, x, f=as_maps: seen.append(f(_first(x)).clone())  # noqa: E731
            hooks.append(module.register_forward_hook(keep))
        else:
            hooks.append(
                module.register_forward_pre_hook(
                    lambda _, x, f=as_maps: seen.append(f(x[0]).clone())
                )
            )
    curves: list[list[Tensor]] = [[] for _ in places]
    variances: list[list[Tensor]] = [[] for _ in places]
    for image in images:
        seen.clear()
        model(image[None])
        for place, maps in enumerate(seen):
            log = (torch.fft.fft2(maps).abs() + 1e-6).log().mean((0, 1))
            half = log.diagonal()[: maps.shape[-1] // 2 + 1].double()
            half[-1] += 0.5 * math.log(2) * (maps.shape[-1] % 2 == 0)  # real at π, not complex
            curves[place].append(half - half[0])
            variances[place].append(maps.flatten(2).var(-1).mean().double())
    for hook in hooks:
        hook.remove()
    return (
        [torch.stack(rows).mean(0) for rows in curves],
        [torch.stack(rows).mean().item() for rows in variances],
    )
