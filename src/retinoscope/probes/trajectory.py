"""The path of the weights during training (Li et al., 2018, arXiv:1712.09913, section 7).

The snapshots of a training are projected onto the plane in which they vary most, with the true loss
at each. The loss at a point in that plane would differ, since the path does not stay in it. In
addition, the polar coordinates of Park & Kim (2022, arXiv:2202.06709, figs 1b and C.4b), whose
first author has asked readers to ignore that experiment (xxxnell/how-do-vits-work, issue 13); and
the length of the path and how much it turns, which do not depend on the choice of a plane.
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
    """One entry per snapshot in training order, or per step from one snapshot to the next.

    ``first`` and ``second`` are coordinates in the principal plane, with the last snapshot at the
    origin, in units of the weights; ``radius`` and ``angle`` are polar coordinates about the last
    snapshot, whose own angle is NaN. ``turn[i]`` is the angle between step i and the previous step.
    ``l2`` is half the squared norm of the parameters, and ``loss`` is ``nll`` plus weight decay
    times that.
    """

    probe: ClassVar[str] = "trajectory"
    schema: ClassVar[int] = 1

    snapshots: tuple[str, ...]
    images: int
    weight_decay: float
    explained: tuple[float, float] | None
    """Fraction of the variance along each of the directions; None if the weights do not move."""
    path_length: float
    distance: float
    """Straight-line distance from the first to the last snapshot."""
    straightness: float | None
    """Distance divided by path length: 1 for a straight line; None if the weights do not move."""
    turning: float | None
    """Sum of all turning angles in radians; None if there are fewer than two steps."""
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
        """How much of the path the plane shows, and how straight the path is."""
        snapshots = wording.count(len(self.snapshots), "snapshot")
        if self.explained is None:
            at = f", at {wording.nll_words(float(self.nll[-1]))}" if len(self.nll) else ""
            return [f"the weights do not move over {snapshots}{at}"]
        first, second = self.explained
        straight = "unknown" if self.straightness is None else wording.number(self.straightness)
        said = [
            f"the plane explains {wording.percent(first + second)} of the variance of the weights "
            f"over {snapshots} ({wording.percent(first)} and {wording.percent(second)})"
            + "; three points are always in one plane"
            * (len(self.snapshots) <= 3),
            f"the path is {wording.number(self.path_length)} long; the distance from its first to "
            f"its last point is {wording.number(self.distance)} (straightness {straight}, where 1 "
            "is a straight line)",
        ]
        if len(self.nll):
            start, end = wording.number(self.nll[0], 3), wording.number(self.nll[-1], 3)
            said.append(f"the NLL changes from {start} to {end} along it")
        if self.turning is not None:
            said.append(
                f"its turning angles add up to {wording.number(math.degrees(self.turning))}°"
            )
        return [*said, wording.weight_decay_words(self.weight_decay)]


@dataclass(frozen=True)
class Trajectory:
    """The path of the weights during training, and the loss along it."""

    result: ClassVar[type[Result]] = TrajectoryResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = (
        "How did the weights move during training, and how straight was their path?"
    )
    reading: ClassVar[str] = (
        "Each point is a snapshot; the last one is at the origin. Two directions show only part "
        "of the movement, so the loss is measured at the snapshots themselves, not in the plane. "
        "A straightness of 1 is a straight line; turning is the sum of the angles between steps. "
        "Both depend on the number of snapshots, so compare only paths with equally many. All "
        "snapshots of one training show the same path. Park & Kim (2022) drew the polar "
        "coordinates and found the paths of ViTs smoother; the author has since withdrawn that "
        "figure, because it may be misleading and is hard to reproduce: do not draw conclusions "
        "from it."
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
    max_images: int = setting(
        128, "Number of images to average the loss over; 0 for all.", at_least=0
    )
    seed: int = setting(0, "Random seed for image selection.", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        check(self, "trajectory")

    @property
    def needs(self) -> Needs:
        """Labelled images, and snapshots."""
        return replace(labelled_images(self.images), snapshots=self.snapshots)

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """One piece for the weights of all snapshots, then one for the loss at each."""
        from retinoscope.models.snapshots import snapshots_of

        names = [one.name for one in snapshots_of(subject, self.needs, fitting=True)]
        return [
            Piece("weights", {"snapshots": names}),
            *(Piece(f"at-{i:04d}", {"place": i, "snapshot": n}) for i, n in enumerate(names)),
        ]

    def seconds(self, subject: Subject, context: Context) -> float:
        """The estimate from trials on some images; the time to read snapshots is not included."""
        from retinoscope.geometry.sample import shuffled
        from retinoscope.geometry.scores import seconds_per_image

        split = subject.split(self.needs)
        indices = shuffled(len(split), self.seed, self.max_images)
        each = seconds_per_image(
            subject, lambda n: split.batches(indices[:n], subject.batch), len(indices)
        )
        return each * len(indices)

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """The inner products of all snapshots, or loss and accuracy at one of them."""
        from retinoscope.models.snapshots import gram_matrix, snapshots_of

        # Select by name: a training that is still running may have added a snapshot.
        found = {one.name: one for one in snapshots_of(subject, self.needs)}
        if "place" in piece.what:
            partial = self._at(subject, found[piece.what["snapshot"]], context)
            return partial | {"place": np.array(piece.what["place"])}
        for text in subject.assumptions(self.needs):
            context.say(f"assumed: {text}")
        path = [found[name] for name in piece.what["snapshots"]]
        if path[0].name == "init" and path[-1].name != "end":
            context.say(f"the final snapshot is missing: {path[-1].name} is used instead")
        decay = subject.weight_decay if self.weight_decay is None else self.weight_decay
        return {
            "gram": gram_matrix(path, subject.backbone),
            "name": np.array([one.name for one in path]),
            "epoch": np.array([one.epoch for one in path]),
            "weight_decay": np.array(decay),
        }

    def _at(self, subject: Subject, snapshot: Any, context: Context) -> dict[str, np.ndarray]:
        """Loss, number of correct predictions and norm, with weights and buffers of a snapshot."""
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
        """The path from its inner products, and the losses in training order."""
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
