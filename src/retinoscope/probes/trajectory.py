"""The path of the weights through a training (Li et al., 2018, arXiv:1712.09913, section 7).

The snapshots of a training in the plane in which they vary most, with the true loss at each: the
loss at a point of that plane would be another, since the path leaves it. Beside it the polar
coordinates of Park & Kim (2022, arXiv:2202.06709, figs 1b and C.4b), whose first author has asked
readers to ignore that experiment (xxxnell/how-do-vits-work, issue 13); and how long the path is and
how much it turns, in numbers that no choice of a plane can bend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from retinoscope.core import wording
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.context import Context
from retinoscope.core.probe import IMAGES, Images, Needs, Partial, Piece, labelled_images
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import MAX_SEED, check, setting
from retinoscope.core.subject import Subject


@answer
class TrajectoryResult(Result):
    """An entry per snapshot in the order of the training, or per step from one to the next.

    ``first`` and ``second`` are coordinates in the principal plane, with the end at the origin, in
    units of the weights; ``radius`` and ``angle`` are polar coordinates about the end, where the
    angle is NaN. ``turn[i]`` is the angle between step i and the one before. ``l2`` is half the
    squared norm of the parameters, and ``loss`` is ``nll`` plus weight decay times that.
    """

    probe: ClassVar[str] = "trajectory"
    schema: ClassVar[int] = 1

    snapshots: tuple[str, ...]
    images: int
    weight_decay: float
    explained: tuple[float, float] | None
    """Share of the variance over snapshots along either direction; None where nothing moves."""
    path_length: float
    distance: float
    """From the first to the last snapshot as the crow flies."""
    straightness: float | None
    """Distance over length: 1 on a straight line; None where nothing moves."""
    turning: float | None
    """Sum of all turns in radians; None where there are fewer than two steps."""
    epoch: np.ndarray = axes("snapshot", unit="epoch", figure=False)
    first: np.ndarray = axes("snapshot", unit="first principal direction", figure=False)
    second: np.ndarray = axes(
        "snapshot", unit="second principal direction", x="first", points="snapshots",
        shade="nll",
        title="The path of the weights in its principal plane",
    )  # fmt: skip
    nll: np.ndarray = axes(
        "snapshot", unit="NLL (nats)", x="epoch", points="snapshots",
        title="The true loss at each snapshot",
    )  # fmt: skip
    l2: np.ndarray = axes("snapshot", unit="ℓ₂", figure=False)
    loss: np.ndarray = axes("snapshot", unit="NLL + weight decay · ℓ₂", figure=False)
    accuracy: np.ndarray = axes("snapshot", unit="accuracy", figure=False)
    radius: np.ndarray = axes("snapshot", unit="r", figure=False)
    angle: np.ndarray = axes(
        "snapshot", unit="θ (rad)", x="radius", points="snapshots",
        title="Polar coordinates about the end (a figure that its author has withdrawn)",
    )  # fmt: skip
    step_length: np.ndarray = axes("step", unit="distance", figure=False)
    turn: np.ndarray = axes("step", unit="rad", figure=False)

    def findings(self) -> list[str]:
        """How much of the path the plane shows, and how straight it is."""
        snapshots = wording.count(len(self.snapshots), "snapshot")
        if self.explained is None:
            at = f", at {wording.nll_words(float(self.nll[-1]))}" if len(self.nll) else ""
            return [f"the weights do not move over {snapshots}{at}"]
        first, second = self.explained
        straight = "unknown" if self.straightness is None else wording.number(self.straightness)
        said = [
            f"the plane holds {wording.percent(first + second)} of how the weights vary over "
            f"{snapshots} ({wording.percent(first)} and {wording.percent(second)})"
            f"{'; three points always lie in a plane' * (len(self.snapshots) <= 3)}",
            f"the path is {wording.number(self.path_length)} long, and "
            f"{wording.number(self.distance)} from its first point to its last (straightness "
            f"{straight}, where 1 is a straight line)",
        ]
        if len(self.nll):
            start, end = wording.number(self.nll[0], 3), wording.nll_words(float(self.nll[-1]))
            said.append(f"it leads from an NLL of {start} to {end}")
        if self.turning is not None:
            said.append(f"its turns add up to {wording.number(math.degrees(self.turning))}°")
        return [*said, wording.weight_decay_words(self.weight_decay)]


@dataclass(frozen=True)
class Trajectory:
    """The path of the weights through a training, and the loss along it."""

    result: ClassVar[type[Result]] = TrajectoryResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Which way did the weights go in training, and how straight?"
    reading: ClassVar[str] = (
        "Each point is a snapshot; the last one lies at the origin. Two directions show only their "
        "share of what moves, so the loss is measured at the snapshots themselves, not in the "
        "plane. A straightness of 1 is a straight line; turning adds up the angles between steps. "
        "Both depend on how many snapshots there are, so compare paths with equally many. Every "
        "snapshot of one training shows the same path. Park & "
        "Kim (2022) drew the polar coordinates and found the paths of ViTs smoother; the author "
        "has since withdrawn that figure, because it may mislead and is hard to reproduce: "
        "conclude nothing from it."
    )

    snapshots: str = setting(
        "", "A folder of snapshots. Default: those of the training that the weights come from."
    )
    images: Images = setting("augmented", IMAGES)
    weight_decay: float | None = setting(
        None,
        "Weight of the ℓ₂ term. Default: the weight decay the model was trained with.",
        at_least=0,
    )
    max_images: int = setting(128, "Images that the loss is averaged over; 0 for all.", at_least=0)
    seed: int = setting(0, "Random seed for the choice of images.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "trajectory")

    @property
    def needs(self) -> Needs:
        """Labelled images, and snapshots."""
        return replace(labelled_images(self.images), snapshots=self.snapshots)

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The weights of all snapshots, then the loss at each."""
        from retinoscope.models.snapshots import snapshots_of

        names = [one.name for one in snapshots_of(subject, self.needs, fitting=True)]
        return [
            Piece("weights", {"snapshots": names}),
            *(Piece(f"at-{i:04d}", {"place": i, "snapshot": n}) for i, n in enumerate(names)),
        ]

    def seconds(self, subject: Subject, context: Context) -> float:
        """By trials on some images; reading the weights of a snapshot is not counted."""
        from retinoscope.geometry.sample import shuffled
        from retinoscope.geometry.scores import seconds_per_image

        split = subject.split(self.needs)
        indices = shuffled(len(split), self.seed, self.max_images)
        each = seconds_per_image(
            subject, lambda n: split.batches(indices[:n], subject.batch), len(indices)
        )
        return each * len(indices)

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """The inner products of all snapshots, or what the network does at one of them."""
        from retinoscope.models.snapshots import gram_matrix, snapshots_of

        # By name: a training that still runs may have added one since.
        found = {one.name: one for one in snapshots_of(subject, self.needs)}
        if "place" in piece.what:
            partial = self._at(subject, found[piece.what["snapshot"]], context)
            return partial | {"place": np.array(piece.what["place"])}
        for text in subject.assumptions(self.needs):
            context.say(f"assumed: {text}")
        path = [found[name] for name in piece.what["snapshots"]]
        if path[0].name == "init" and path[-1].name != "end":
            context.say(f"there is no snapshot of the end: {path[-1].name} stands for it")
        decay = subject.weight_decay if self.weight_decay is None else self.weight_decay
        return {
            "gram": gram_matrix(path, subject.backbone),
            "name": np.array([one.name for one in path]),
            "epoch": np.array([one.epoch for one in path]),
            "weight_decay": np.array(decay),
        }

    def _at(self, subject: Subject, snapshot: Any, context: Context) -> dict[str, np.ndarray]:
        """Loss, hits and norm with the weights and buffers of a snapshot."""
        from retinoscope.geometry.exchanged import exchanged
        from retinoscope.geometry.sample import shuffled
        from retinoscope.geometry.scores import scored
        from retinoscope.models.snapshots import read_snapshot

        state = read_snapshot(snapshot)
        split = subject.split(self.needs)
        places = shuffled(len(split), self.seed, self.max_images)
        with exchanged(subject.backbone, state):
            batches = split.batches(places, subject.batch, subject.workers)
            found = scored(subject, batches, context.say)
        squares = [
            float(state[name].double().square().sum())
            for name, _ in subject.backbone.named_parameters()
        ]
        return {
            "nll": np.array(found.nll),
            "accuracy": np.array(found.accuracy),
            "images": np.array(found.images),
            "l2": np.array(sum(squares) / 2),
        }

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> TrajectoryResult:
        """The path from its inner products, and the losses in the order of the training."""
        from retinoscope.numerics.paths import lengths, polar, principal_plane, turns

        (path,) = (partial for partial in partials if "gram" in partial)
        at = sorted((p for p in partials if "place" in p), key=lambda p: int(p["place"]))
        gram, decay = path["gram"], float(path["weight_decay"])
        coordinates, explained = principal_plane(gram)
        radius, angle = polar(gram)
        steps, turn = lengths(gram), turns(gram)
        length, distance = float(steps.sum()), float(np.sqrt(gram[0, 0]))
        nll, l2 = (np.array([float(p[key]) for p in at]) for key in ("nll", "l2"))
        return TrajectoryResult(
            snapshots=tuple(map(str, path["name"])),
            images=max(int(p["images"]) for p in at),
            weight_decay=decay,
            explained=(float(explained[0]), float(explained[1])) if length else None,
            path_length=length,
            distance=distance,
            straightness=distance / length if length else None,
            turning=float(np.nansum(turn)) if np.isfinite(turn).any() else None,
            epoch=path["epoch"],
            first=coordinates[:, 0],
            second=coordinates[:, 1],
            nll=nll,
            l2=l2,
            loss=nll + decay * l2,
            accuracy=np.array([float(p["accuracy"]) for p in at]),
            radius=radius,
            angle=angle,
            step_length=steps,
            turn=turn,
        )
