"""Watching probes in one pass against the plain forward pass, and against the notebook recipe.

First all watching probes together, with their peak memory; then Fourier and variance alone.

The recipe reimplements the paper's notebooks: run the model with its blocks listed by hand, keep
every map, then compute the full Fourier transform of each, shift it, average it and take its
diagonal, and compute the variance of each. Everything runs with one thread on images in memory; the
results are checked to agree first. The bound is 1, because every measurement needs a forward pass.
With ``--against PATH``, the same pass is timed in turns with the code of another checkout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from checkouts import HERE, Worker
from networks import NETWORKS
from pairs import Ratio, asked, time_pairs, verdict
from peak import peak
from retinoscope.core.context import Context
from retinoscope.core.probe import Watcher
from retinoscope.core.subject import Batch, Subject
from retinoscope.core.unit import Kind
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.attention import Attention
from retinoscope.probes.consistency import Consistency
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.oversmoothing import Oversmoothing
from retinoscope.probes.similarity import Similarity
from retinoscope.probes.tokens import Tokens
from retinoscope.probes.variance import Variance
from retinoscope.run.shared_pass import SharedPass
from retinoscope.run.subject import load_subject

_WORKER = """
import json, sys, time
import torch
torch.set_num_threads(1)
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.subject import load_subject
name, count = json.loads(sys.argv[1])
subject = load_subject(name, "cues", pretrained=False, images=count)
draw_at_order_one(subject.backbone)
split = subject.splits["test"] if "test" in subject.splits else subject.splits["test", False]
(batch,) = split.batches(range(count), count)
watchers = Fourier(), Variance()
try:
    from retinoscope.core.context import Context
    from retinoscope.run.shared_pass import SharedPass
    shared, context = SharedPass(watchers), Context()
    def look():
        groups = shared.look(subject, [batch], context)
        return [w.gather(g) for w, (g,) in zip(watchers, groups)]
except ImportError:  # a checkout from before the shared pass was a probe
    from retinoscope.run.task import watch
    def look():
        rows = watch(watchers, subject, batch.images)
        return [w.gather(subject.anatomy, r) for w, r in zip(watchers, rows)]
for _ in sys.stdin:
    start = time.perf_counter()
    found = look()
    seconds = time.perf_counter() - start
    sums = [float(sum(abs(v[v == v]).sum() for v in part.values())) for part in found]
    print(json.dumps([seconds, sums]), flush=True)
"""
BARS = {"resnet20_cifar": 1.50, "ViT-Tiny": 1.45}
ALL_BARS = {"resnet20_cifar": 2.5, "ViT-Tiny": 2.0}
MEMORY_BAR = 2.0
IMAGES = 64


def main() -> None:
    """Print a line per network and comparison."""
    arguments = asked(__doc__, pairs=25, against=())
    pairs = arguments.pairs
    for checkout in arguments.against:
        for called, name in NETWORKS.items():
            compare(called, name, Path(checkout).resolve(), pairs)
    for called, name in NETWORKS.items():
        subject = load_subject(name, "cues", pretrained=False, images=IMAGES)
        draw_at_order_one(subject.backbone)
        (batch,) = subject.splits["test"].batches(range(IMAGES), IMAGES)
        with torch.inference_mode():
            everything(called, subject, batch.images, pairs)
            measure(called, subject, batch.images, pairs)


def everything(called: str, subject: Subject, images: Tensor, pairs: int) -> None:
    """Time all watching probes together, then each alone, and measure the peak memory."""
    batch, context = Batch(images, tuple(range(len(images)))), Context()
    watchers = [Fourier(), Variance(), Similarity(), Tokens(), Oversmoothing(), Consistency()]
    if any(unit.kind is Kind.ATTENTION for unit in subject.anatomy):
        watchers.append(Attention())

    def looked(chosen: Sequence[Watcher]) -> Callable[[], object]:
        shared = SharedPass(tuple(chosen))
        return lambda: [
            watcher.gather(group)
            for watcher, (group,) in zip(
                chosen, shared.look(subject, [batch], context), strict=True
            )
        ]

    def forward() -> Tensor:
        return subject.model(images)

    found, bar = time_pairs(looked(watchers), forward, pairs), ALL_BARS[called]
    print(
        f"{called}: all {len(watchers)} watching probes / forward {found}; bound 1; "
        f"bar {bar:.2f} {verdict(found.median <= bar)}"
    )
    for watcher in watchers:
        alone = time_pairs(looked([watcher]), forward, max(5, pairs // 3))
        print(f"{called}: {watcher.result.probe} alone / forward {alone}")
    # Gram matrices of all units for 64 images, in single and in double precision.
    stack = len(subject.anatomy) * len(images) ** 2 * (4 + 8) / 2**20
    ours, plain = peak(looked(watchers)), peak(forward)
    most = MEMORY_BAR * plain + stack
    print(
        f"{called}: peak memory {ours:.1f} MiB, forward {plain:.1f} MiB, Gram matrices "
        f"{stack:.1f} MiB; bar {most:.1f} MiB {verdict(ours <= most)}"
    )


def compare(called: str, name: str, checkout: Path, pairs: int) -> None:
    """Time the pass by the code of this checkout and of another, in turns."""
    workers = [Worker(path, _WORKER, [name, IMAGES]) for path in (HERE, checkout)]
    first = [worker.work() for worker in workers]
    np.testing.assert_allclose(first[0][1], first[1][1], rtol=1e-6)
    turns = [[worker.work()[0] for worker in workers] for _ in range(pairs)]
    found = Ratio.of([a for a, _ in turns], [b for _, b in turns])
    print(
        f"{called}: this checkout / {checkout.name} {found}; bar 1.00 {verdict(found.median <= 1)}"
    )


def measure(called: str, subject: Subject, images: Tensor, pairs: int) -> None:
    """Time ours and the recipe against the forward pass of the same images."""
    watchers = (Fourier(), Variance())
    shared, context = SharedPass(watchers), Context()
    batch = Batch(images, tuple(range(len(images))))

    def ours() -> list[object]:
        groups = shared.look(subject, [batch], context)
        return [w.gather(g) for w, (g,) in zip(watchers, groups, strict=True)]

    def forward() -> Tensor:
        return subject.model(images)

    def recipe() -> tuple[list[Tensor], list[Tensor]]:
        return notebook(subject.model, images)

    agree(subject, watchers, ours(), recipe())
    found = time_pairs(ours, forward, pairs)
    bar = BARS[called]
    print(
        f"{called}: Fourier and variance / forward {found}; bound 1; "
        f"bar {bar:.2f} {verdict(found.median <= bar)}"
    )
    print(f"{called}: notebook recipe / forward {time_pairs(recipe, forward, pairs)}")
    print(f"{called}: notebook recipe / ours {time_pairs(recipe, ours, pairs)}")


def notebook(model: nn.Module, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The recipe: keep the maps of hand-listed blocks, then measure each in full."""
    kept = keep(model, images)
    curves, variances = [], []
    for maps in kept:
        side = maps.shape[-1]
        log = (torch.fft.fft2(maps).abs() + 1e-6).log()
        shifted = torch.roll(log, (side // 2, side // 2), (2, 3)).mean((0, 1))
        # As in the notebooks: from the centre on, without the highest frequency of even sizes.
        half = shifted.diagonal()[side // 2 :]
        curves.append(half - half[0])
        variances.append(maps.flatten(2).var(-1).mean())
    return curves, variances


def keep(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The maps after every block; blocks must be listed by hand for each family of models."""
    backbone, seen = model.backbone, []

    def tokens(x: Tensor) -> Tensor:
        x = x[:, 1:].transpose(1, 2)
        side = int(x.shape[-1] ** 0.5)
        return x.reshape(len(x), -1, side, side)

    x = model.normalise(images)
    if hasattr(backbone, "blocks"):
        x = backbone.norm_pre(backbone._pos_embed(backbone.patch_embed(x)))
        seen.append(tokens(x))
        for block in backbone.blocks:
            x = x + block.drop_path1(block.ls1(block.attn(block.norm1(x))))
            seen.append(tokens(x))
            x = x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))
            seen.append(tokens(x))
        backbone.forward_head(backbone.norm(x))
        return seen
    x = backbone.act1(backbone.bn1(backbone.conv1(x)))
    seen.append(x)
    for stage in (backbone.layer1, backbone.layer2, backbone.layer3):
        for block in stage:
            x = block(x)
            seen.append(x)
    backbone.forward_head(x)
    return seen


def agree(
    subject: Subject,
    watchers: tuple[Fourier, Variance],
    ours: list[object],
    theirs: tuple[list[Tensor], list[Tensor]],
) -> None:
    """Check that both give the same curves and variances."""
    fourier, variance = (
        w.combine(subject.anatomy, [p])  # pyright: ignore[reportArgumentType]
        for w, p in zip(watchers, ours, strict=True)
    )
    off = max(
        float(np.abs(mine[: len(curve)] - curve.numpy()).max())
        for mine, curve in zip(fourier.log_amplitude, theirs[0], strict=True)
    )
    np.testing.assert_allclose(variance.variance, [float(v) for v in theirs[1]], rtol=1e-5)
    if off > 1e-4:  # single precision on both sides, logarithms of small amplitudes
        raise SystemExit(f"{subject.name}: the curves differ by {off:.1e}")
    print(f"{subject.name}: the results agree, curves to {off:.1e}, variances to 1e-05")


if __name__ == "__main__":
    main()
