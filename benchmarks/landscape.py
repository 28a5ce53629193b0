"""Time of a loss landscape, against forward passes, the original method and loss-landscapes.

    python benchmarks/landscape.py
    python benchmarks/landscape.py --points 3 --images 32 --pairs 2      for a quick look

Uses a small ResNet that was trained briefly, clean training images of cues and one thread, and
measures CPU seconds. All run in turns:

- forward is the network on the same images, once for each point, which every method needs
- ours is the probe in a new run folder, including everything except loading the model
- the twin reimplements the method of Park & Kim (2022, arXiv:2202.06709): for each point, a state
  dict of new tensors is loaded into the network, which is evaluated, and a figure is saved
- loss-landscapes is ``random_plane`` with filter normalisation on all images at once. It evaluates
  other points, so only its time is compared

First it checks that the centre has the loss of the unchanged network, bit for bit, and that all
points agree with the twin.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from hessian import warmed
from pairs import Ratio, asked, peer, take_turns, verdict
from retinoscope.core.subject import Batch, Subject
from retinoscope.geometry.scores import scored
from retinoscope.models.checkpoint import state_hash
from retinoscope.probes.landscape import Landscape, LandscapeResult
from retinoscope.run.run import measure

NETWORK = "resnet20_cifar"
FORWARD_BAR, PEER_BAR = 1.05, 1.0
AGREED = 1e-5
"""Relative tolerance; both use single precision, and sum in another order."""
BINS = 10


def main() -> None:
    """Print the ratios; exit with 1 if results disagree."""
    arguments = asked(__doc__, pairs=3, points=11, images=200)
    subject = warmed(NETWORK)
    probe = Landscape(points=arguments.points, images="clean", max_images=arguments.images)
    batches = list(probe._batches(subject))
    agree(probe, subject, batches)
    compare(probe, subject, batches, arguments.pairs)


def ours(probe: Landscape, subject: Subject) -> LandscapeResult:
    """The probe, as a user runs it."""
    result = measure(probe, subject)
    assert isinstance(result, LandscapeResult)
    return result


def forward(subject: Subject, batches: Sequence[Batch], points: int) -> None:
    """Only the forward passes of all points."""
    with torch.inference_mode():
        for _ in range(points):
            for batch in batches:
                subject.model(batch.images)


def twin(probe: Landscape, subject: Subject, batches: Sequence[Batch]) -> np.ndarray:
    """The loss at each point by the original method; rows are along the second direction."""
    directions, _ = probe._directions(subject, {})
    base = {name: value.clone() for name, value in subject.backbone.state_dict().items()}
    found = np.empty((probe.points, probe.points))
    with TemporaryDirectory(prefix="landscape-") as temporary:
        for i, y in enumerate(probe.places):
            for j, x in enumerate(probe.places):
                state = dict(base)
                for along, direction in zip((x, y), directions, strict=True):
                    for name, change in direction.items():
                        state[name] = state[name] + float(along) * change
                subject.backbone.load_state_dict(state)
                found[i, j] = evaluated(subject, batches, Path(temporary) / f"{i}-{j}.png")
    subject.backbone.load_state_dict(base)
    return found


def evaluated(subject: Subject, batches: Sequence[Batch], picture: Path) -> float:
    """The mean loss; confidence and accuracy are drawn into a picture."""
    losses, sure, right = [], [], []
    with torch.no_grad():
        for batch in batches:
            labels = batch.labels
            assert labels is not None
            likely = log_softmax(subject.model(batch.images), dim=1)
            losses.append(-likely.gather(1, labels[:, None])[:, 0])
            sure.append(likely.max(1).values.exp())
            right.append((likely.argmax(1) == labels).float())
    draw(torch.cat(sure).numpy(), torch.cat(right).numpy(), picture)
    return float(torch.cat(losses).double().mean())


def draw(sure: np.ndarray, right: np.ndarray, picture: Path) -> None:
    """A reliability diagram: accuracy by confidence, and the number of images per bin."""
    edges = np.linspace(0, 1, BINS + 1)
    places = np.clip(np.digitize(np.nan_to_num(sure), edges) - 1, 0, BINS - 1)
    counts = np.bincount(places, minlength=BINS)
    accuracy = np.bincount(places, right, BINS) / np.maximum(counts, 1)
    figure = Figure(figsize=(8, 4))
    FigureCanvasAgg(figure)
    for axes, heights in zip(figure.subplots(1, 2), (accuracy, counts), strict=True):
        axes.bar(edges[:-1], heights, width=1 / BINS, align="edge", edgecolor="black")
        axes.set_xlabel("confidence")
    figure.savefig(picture)


def loss_landscapes(probe: Landscape, subject: Subject, images: Tensor, labels: Tensor) -> None:
    """Run loss-landscapes on a copy of the network, because it changes the weights."""
    module = peer("loss_landscapes", "loss-landscapes==3.0.6")
    metrics = peer("loss_landscapes.metrics", "loss-landscapes==3.0.6")
    torch.manual_seed(0)  # it draws from the global generator
    module.random_plane(
        subject.model, metrics.Loss(nn.CrossEntropyLoss(), images, labels),
        steps=probe.points, normalization="filter", deepcopy_model=True,
    )  # fmt: skip


def agree(probe: Landscape, subject: Subject, batches: Sequence[Batch]) -> None:
    """Check that ours and the twin give the same losses, and that the weights are unchanged."""
    before = scored(subject, batches).nll
    result, half = ours(probe, subject), probe.points // 2
    middle = float(result.nll[half, half])
    kept = state_hash(subject.backbone) == subject.state
    if not middle == result.centre_nll == before == scored(subject, batches).nll or not kept:
        raise SystemExit(f"The centre is {middle!r}, the network's own loss {before!r}.")
    theirs = twin(probe, subject, batches)
    finite = np.isfinite(theirs)
    if (finite != np.isfinite(result.nll)).any():
        raise SystemExit("Ours and the twin differ in which points are finite.")
    off = float(np.max(np.abs(result.nll - theirs)[finite] / theirs[finite]))
    print(
        f"{NETWORK}: {result.images} images, {result.nll.size} points; the centre is exactly the "
        f"network's own loss {middle:.6f}; points from {theirs.min():.3f} to {theirs.max():.3g}, "
        f"{result.not_finite} of them not finite; ours and the twin differ by at most {off:.1e}",
        flush=True,
    )
    if not off <= AGREED:
        raise SystemExit(f"They do not agree: the bar is {AGREED:.0e}.")


def compare(probe: Landscape, subject: Subject, batches: Sequence[Batch], turns: int) -> None:
    """Time the four in turns, and print the ratios."""
    points = probe.points**2
    images = torch.cat([batch.images for batch in batches])
    labels = torch.cat([batch.labels for batch in batches if batch.labels is not None])
    loss_landscapes(replace(probe, points=3), subject, images, labels)  # warm-up
    bare, mine, original, theirs = take_turns(
        (
            lambda: forward(subject, batches, points),
            lambda: ours(probe, subject),
            lambda: twin(probe, subject, batches),
            lambda: loss_landscapes(probe, subject, images, labels),
        ),
        turns,
        time.process_time,
    )
    found, other = Ratio.of(mine, bare), Ratio.of(mine, theirs)
    print(
        f"{NETWORK}: ours / {points} forward passes {found}; bound {1 - 1 / points:.3f}; "
        f"bar {FORWARD_BAR} {verdict(found.median <= FORWARD_BAR)}\n"
        f"{NETWORK}: ours / loss-landscapes, per point {other}; "
        f"bar {PEER_BAR} {verdict(other.median <= PEER_BAR)}\n"
        f"{NETWORK}: twin / ours {Ratio.of(original, mine)}"
    )


if __name__ == "__main__":
    main()
