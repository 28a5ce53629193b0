"""The loss around the weights (Li et al., 2018, arXiv:1712.09913; Park & Kim, arXiv:2202.06709).

The weights are moved along one or two directions, and the loss on training images is computed at
each point. Random directions are Gaussian, with each filter scaled to the norm of the network's
own. Alternatively, a direction points to another snapshot or is an eigenvector of the Hessian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from retinoscope.core import wording
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import IMAGES, Images, Needs, Partial, Piece, labelled_images
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import MAX_SEED, check, refuse, setting

if TYPE_CHECKING:
    from retinoscope.core.subject import Batch, Subject
    from retinoscope.geometry.moving import Direction


@answer
class LandscapeResult(Result):
    """``nll[i, j]`` at ``w + x[j]·d + y[i]·e``; along one direction there is one row, ``y = [0]``.

    ``loss`` is ``nll`` plus weight decay times ``l2``. Values that are NaN or infinite are kept,
    and counted in ``not_finite``. ``profiles`` are the lines through the centre.
    """

    probe: ClassVar[str] = "landscape"
    schema: ClassVar[int] = 1

    images: int
    directions: tuple[str, ...]
    """The directions d and e, in words."""
    weight_decay: float
    moved: int
    """Number of parameters that the directions move."""
    kept: tuple[str, ...]
    """Tensors that stay fixed: norms, biases, position tables."""
    centre_nll: float
    centre_accuracy: float
    not_finite: int
    """Number of cells whose loss is not finite."""
    x: np.ndarray = axes("x", unit="along d", figure=False)
    y: np.ndarray = axes("y", unit="along e", figure=False)
    nll: np.ndarray = axes(
        "y", "x", unit="NLL (nats)", x="x", y="y",
        title="Negative log-likelihood around the weights",
    )  # fmt: skip
    l2: np.ndarray = axes("y", "x", unit="ℓ₂", x="x", y="y", figure=False)
    loss: np.ndarray = axes(
        "y", "x", unit="NLL + weight decay · ℓ₂", x="x", y="y",
        title="The same with weight decay",
    )  # fmt: skip
    accuracy: np.ndarray = axes("y", "x", unit="accuracy", x="x", y="y", figure=False)
    distance: np.ndarray = axes("distance", unit="in units of the direction", figure=False)
    profiles: np.ndarray = axes(
        "direction", "distance", unit="NLL (nats)", x="distance", rows="directions",
        title="Negative log-likelihood along each direction",
    )  # fmt: skip

    def findings(self) -> list[str]:
        """The loss at the centre, cells that are not finite, and the parameters that move."""
        cells, holes = wording.count(self.nll.size, "cell"), self.not_finite
        along = zip(("d", "e"), self.directions, strict=False)
        said = [
            f"the NLL at the weights themselves is {wording.number(self.centre_nll)}, the accuracy "
            f"{wording.percent(self.centre_accuracy)}",
            f"{holes} of {cells} have a loss that is not finite"
            if holes
            else f"the loss is finite in all {cells}",
            "; ".join(f"direction {letter}: {words}" for letter, words in along),
            f"{wording.count(self.moved, 'parameter')} move, "
            f"{wording.count(len(self.kept), 'tensor')} stay "
            f"fixed{': ' if self.kept else ''}{wording.listed(self.kept)}",
            wording.weight_decay_words(self.weight_decay),
        ]
        return [words for words in said if words]


@dataclass(frozen=True)
class Landscape:
    """The loss at points around the weights, along one or two directions."""

    result: ClassVar[type[Result]] = LandscapeResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "What does the loss look like around the weights?"
    reading: ClassVar[str] = (
        "The weights are at the centre. A wide, smooth bowl is flat and easy to train; steep "
        "walls, ridges and further minima are not. Random directions have the norms of the "
        "network's own filters, so that networks can be compared. Park & Kim (2022) plot the loss "
        "with weight decay, which accounts for most of the bowl; here the NLL alone is shown "
        "first."
    )

    points: int = setting(
        11, "Points along each direction; an odd number, so that one is at the weights.", at_least=3
    )
    radius: float = setting(
        1.0, "Maximum distance from the weights, as a multiple of the direction.", above=0
    )
    dimensions: int = setting(2, "1 for a line, 2 for a plane.", at_least=1, at_most=2)
    directions: Literal["random", "eigenvectors"] = setting(
        "random",
        "Random Gaussian directions, or the eigenvectors of the Hessian with the largest "
        "eigenvalues.",
    )
    target: str = setting("", "A model or weight file that the first direction points to.")
    second_target: str = setting("", "A model or weight file that the second direction points to.")
    scale: Literal["filter", "paper", "none"] = setting(
        "filter",
        "Scaling of random directions: to the norms of the filters, as in the paper's code, or "
        "none.",
    )
    l2: Literal["half_squares", "paper"] = setting(
        "half_squares", "½ Σ ‖w‖², or Σ ‖w‖ over tensors as in the paper's code."
    )
    images: Images = setting("augmented", IMAGES)
    max_images: int = setting(
        64, "Number of images to average the loss over; 0 for all.", at_least=0
    )
    weight_decay: float | None = setting(
        None,
        "Weight of the ℓ₂ term. Default: the weight decay the model was trained with.",
        at_least=0,
    )
    seed: int = setting(
        0, "Random seed for directions and image selection.", at_least=0, at_most=MAX_SEED
    )

    def __post_init__(self) -> None:
        check(self, "landscape")
        refuse(
            "landscape",
            (f"points must be odd; got {self.points}. Use {self.points + 1}", self.points % 2 == 1),
            ("second_target needs target and dimensions=2. Pass all three",
             not self.second_target or bool(self.target and self.dimensions == 2)),
            ("directions=eigenvectors and target cannot be combined. Choose one",
             self.directions == "random" or not self.target),
        )  # fmt: skip

    @property
    def needs(self) -> Needs:
        """Labelled images, and the models that directions point to."""
        others = tuple(name for name in (self.target, self.second_target) if name)
        return replace(labelled_images(self.images), others=others)

    @property
    def places(self) -> np.ndarray:
        """The coordinates of the points along a direction, including 0."""
        half = self.points // 2
        return np.arange(-half, half + 1) * (self.radius / half)

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The rows of a plane, or the points of a line."""
        if not len(subject.split(self.needs)):
            raise NotApplicable("needs labelled images of classes that the model knows")
        kind = "row" if self.dimensions == 2 else "point"
        return [Piece(f"{kind}-{i:04d}", {"place": i}) for i in range(self.points)]

    def seconds(self, subject: Subject, context: Context) -> float:
        """The estimate from trials on some images."""
        from retinoscope.geometry.scores import seconds_per_image

        split, indices = subject.split(self.needs), self._images(subject)
        each = seconds_per_image(
            subject, lambda n: split.batches(indices[:n], subject.batch), len(indices)
        )
        return each * len(indices) * (self.points if self.dimensions == 2 else 1)

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """The loss along a row of points."""
        from retinoscope.geometry.moving import Moving, squared_norms, squares
        from retinoscope.geometry.scores import scored

        centre = context.prepared
        directions, names = self._directions(subject, context)
        tensors = dict(subject.backbone.named_parameters())
        products = squares(tensors, directions)
        batches = list(self._batches(subject))
        rows = []
        with Moving(subject.backbone.state_dict(), directions) as moving:
            for at in self._row(piece.what["place"]):
                if any(at):
                    moving.to(*at)
                    found = scored(subject, batches, context.say)
                    nll, accuracy = found.nll, found.accuracy
                else:  # already computed with the original weights
                    nll, accuracy = float(centre["nll"]), float(centre["accuracy"])
                rows.append((nll, accuracy, self._norm(squared_norms(products, *at))))
        nll, accuracy, norm = np.array(rows).T
        still = [n for n in tensors if not any(n in d for d in directions)]
        return {
            "place": np.array(piece.what["place"]), "nll": nll, "accuracy": accuracy, "l2": norm,
            "directions": np.array(names, dtype=np.str_),
            "kept": np.array(still, dtype=np.str_),
            "moved": np.array(sum(t.numel() for n, t in tensors.items() if n not in still)),
        }  # fmt: skip

    def _row(self, place: int) -> list[tuple[float, ...]]:
        """The coordinates of a piece along the first direction, and its one along the second."""
        if self.dimensions == 1:
            return [(float(self.places[place]),)]
        return [(float(x), float(self.places[place])) for x in self.places]

    def _norm(self, squared: np.ndarray) -> float:
        return float(squared.sum() / 2 if self.l2 == "half_squares" else np.sqrt(squared).sum())

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """The loss at the original weights, and the eigenvectors there if requested."""
        from retinoscope.geometry.scores import scored

        for text in subject.assumptions(self.needs):
            context.say(f"assumed: {text}")
        batches = list(self._batches(subject))
        found = scored(subject, batches, context.say)
        if not math.isfinite(found.nll):
            raise RetinoscopeError(
                f"The loss of {subject.name} is {found.nll} at its own weights, over "
                f"{found.images} images, so no landscape can be computed. Are the weights "
                "undamaged, and do they match --mean, --std and --precision?"
            )
        decay = subject.weight_decay if self.weight_decay is None else self.weight_decay
        partial = {
            "nll": np.array(found.nll), "accuracy": np.array(found.accuracy),
            "images": np.array(found.images), "decay": np.array(decay),
        }  # fmt: skip
        return partial | self._eigenvectors(subject, batches, context)

    def _eigenvectors(
        self, subject: Subject, batches: Sequence[Batch], context: Context
    ) -> dict[str, Any]:
        if self.directions != "eigenvectors":
            return {}
        from retinoscope.geometry.curvature import Curvature, joined
        from retinoscope.numerics.krylov import Lanczos

        batch = joined(batches)
        curvature = Curvature(subject.backbone, subject.batch_loss, batch, context.say)
        found = Lanczos(k=self.dimensions)(curvature.product, curvature.like, self.seed)
        if not found.converged.all():
            context.say(
                f"the eigenvectors have not converged: ‖Hv − λv‖ is {found.residuals.max():.2g} "
                f"after {found.products} products"
            )
        return {
            "eigenvalues": found.values,
            "eigenvectors": found.vectors.cpu().numpy(),
            "names": np.array(curvature.learned.names, dtype=np.str_),
        }

    def _directions(self, subject: Subject, context: Context) -> tuple[list[Direction], list[str]]:
        """The directions along which to move the weights, with their names."""
        from retinoscope.geometry.directions import (
            movable,
            output_axes,
            random_direction,
            shaped,
            towards,
        )
        from retinoscope.geometry.sample import seed_of

        if self.directions == "eigenvectors":
            given = context.prepared
            called = [f"eigenvector of λ = {value:.4g}" for value in given["eigenvalues"]]
            return shaped(subject, given["names"].tolist(), given["eigenvectors"]), called
        names = [name for name in (self.target, self.second_target) if name]
        ways: list[Direction] = [towards(subject, context.another(name)) for name in names]
        called = [f"towards {name}" for name in names]
        weights = movable(subject)
        if not weights and len(ways) < self.dimensions:
            raise NotApplicable("needs weights of linear maps to move, but the network has none")
        for number in range(len(ways), self.dimensions):
            seed = seed_of(self.seed, number)
            ways.append(random_direction(weights, self.scale, seed, output_axes(subject)))
            called.append(f"random direction {number + 1}")
        return ways, called

    def _images(self, subject: Subject) -> list[int]:
        from retinoscope.geometry.sample import shuffled

        return shuffled(len(subject.split(self.needs)), self.seed, self.max_images)

    def _batches(self, subject: Subject) -> Any:
        split = subject.split(self.needs)
        return split.batches(self._images(subject), subject.batch, subject.workers)

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> LandscapeResult:
        """The rows as a map, and the lines through its centre."""
        (centre,) = (partial for partial in partials if "place" not in partial)
        rows = sorted((p for p in partials if "place" in p), key=lambda p: int(p["place"]))
        nll, l2, accuracy = (
            np.stack([row[key] for row in rows]) for key in ("nll", "l2", "accuracy")
        )
        decay, half = float(centre["decay"]), self.points // 2
        if self.dimensions == 1:
            nll, l2, accuracy = nll.T, l2.T, accuracy.T
        profiles = [nll[half if self.dimensions == 2 else 0]]
        profiles += [nll[:, half]] if self.dimensions == 2 else []
        return LandscapeResult(
            images=int(centre["images"]),
            directions=tuple(rows[0]["directions"].tolist()),
            weight_decay=decay,
            moved=int(rows[0]["moved"]),
            kept=tuple(rows[0]["kept"].tolist()),
            centre_nll=float(centre["nll"]),
            centre_accuracy=float(centre["accuracy"]),
            not_finite=int((~np.isfinite(nll)).sum()),
            x=self.places,
            y=self.places if self.dimensions == 2 else np.zeros(1),
            nll=nll,
            l2=l2,
            loss=nll + decay * l2,
            accuracy=accuracy,
            distance=self.places,
            profiles=np.stack(profiles),
        )
