"""How often a network is right, and how sure it is of the right answer.

Top-1 accuracy and negative log-likelihood (NLL) on labelled test images. Accuracy exposes wrong
preprocessing at once; the NLL also counts confidence, and is the loss that the probes of curvature
look at. The accuracy of the most confident images shows whether confidence means anything (Geifman
& El-Yaniv, 2017, arXiv:1705.08500). For a network that draws at test time the probabilities of its
passes are averaged first, as for MC dropout (Gal & Ghahramani, 2016, arXiv:1506.02142).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from retinoscope.core import wording
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.sight import Group, Sight

if TYPE_CHECKING:
    from torch import Tensor

_FEWEST = 2
"""Images below which there is no standard error."""
_SHARES = np.arange(1, 21) / 20
_ARRAYS = ("index", "label", "prediction", "confidence", "image_nll")


@answer
class AccuracyResult(Result):
    """``accuracy`` and ``nll`` are means over images; errors are standard errors over images.

    The arrays have an entry per image, in the order of the split. Labels and predictions are
    indices of the model's own classes; ``confidence`` is the probability of the prediction.
    ``selective[k]`` is the accuracy of the share ``kept[k]`` of images with the highest confidence.
    """

    probe: ClassVar[str] = "accuracy"
    schema: ClassVar[int] = 1

    images: int
    classes: int
    """Classes that the model tells apart."""
    accuracy: float
    accuracy_error: float
    nll: float
    nll_error: float
    index: np.ndarray = axes("image", unit="index in the split", figure=False)
    label: np.ndarray = axes("image", unit="class", figure=False)
    prediction: np.ndarray = axes("image", unit="class", figure=False)
    confidence: np.ndarray = axes("image", unit="probability", figure=False)
    image_nll: np.ndarray = axes("image", unit="NLL (nats)", figure=False)
    kept: np.ndarray = axes("kept", unit="share of images, surest first", figure=False)
    selective: np.ndarray = axes(
        "kept", unit="accuracy", x="kept",
        title="Accuracy of the images with the highest confidence, by the share that is kept",
    )  # fmt: skip

    def findings(self) -> list[str]:
        """Accuracy and NLL, and whether guessing would do as well."""
        said = [
            f"{self.in_short()} of {wording.count(self.images, 'image')} right, NLL "
            f"{wording.number(self.nll, 3)} ± {wording.number(self.nll_error, 2)}"
        ]
        if self.accuracy - 2 * self.accuracy_error <= 1 / self.classes:
            said.append(
                f"guessing among {self.classes:,} classes would be right as often: are the weights "
                "trained, and do --size, --mean and --std fit them?"
            )
        return said

    def in_short(self) -> str:
        """The accuracy with its standard error, both in per cent.

        Example:
            >>> none = dict.fromkeys((*_ARRAYS, "kept", "selective"), np.empty(0))
            >>> AccuracyResult(images=512, classes=9, accuracy=0.712, accuracy_error=0.0142,
            ...                nll=1.2, nll_error=0.1, **none).in_short()
            '71.2 % ± 1.4'
        """
        error = f" ± {wording.number(100 * self.accuracy_error, 2)}" if self.accuracy_error else ""
        return f"{wording.percent(self.accuracy)}{error}"


@dataclass(frozen=True)
class Accuracy:
    """Top-1 accuracy and NLL on labelled test images."""

    result: ClassVar[type[Result]] = AccuracyResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "How often is the model right, and how sure is it?"
    reading: ClassVar[str] = (
        "Accuracy is the share of test images whose label is the likeliest class. An accuracy far "
        "below the published one usually means wrong preprocessing: compare size, mean and "
        "standard deviation. The NLL also counts how much probability the right class gets: a "
        "uniform guess among K classes has an NLL of ln K. The curve is the accuracy of the images "
        "with the highest confidence alone: where it falls, the model knows what it does not know."
    )

    @property
    def needs(self) -> Needs:
        """Labelled test images; every unit is seen, for logits are not spread over positions."""
        return Needs(split="test", labels=True, maps=False)

    def watch(self, sight: Sight) -> dict[str, Tensor] | None:
        """Probabilities (N, K) and their logarithms, in double precision; nothing of maps."""
        from torch.nn.functional import log_softmax

        grid = sight.unit.grid
        if grid is not None and grid.height * grid.width > 1:
            return None
        log = log_softmax(sight.raw.flatten(1).cpu().double(), 1)
        return {"probability": log.exp(), "log_probability": log}

    def gather(self, group: Group) -> Partial:
        """Each image's label, prediction and NLL; the last unit's state holds the logits."""
        if not group.indices:
            return {}
        rows = group.rows.get(group.anatomy.units[-1].name)
        if rows is None or group.labels is None:
            raise NotApplicable("needs a row of logits per image; the model's output is none")
        images, labels = np.arange(len(group.labels)), group.labels
        probability = rows["probability"]
        right = probability[images, labels]
        # Of a network that draws, both are means over passes, and the first is the right one. It
        # may be too small for a double, where its logarithm is not.
        with np.errstate(divide="ignore"):
            log = np.where(right > 1e-300, np.log(right), rows["log_probability"][images, labels])
        prediction = probability.argmax(1)
        return {
            "index": np.array(group.indices),
            "label": labels,
            "prediction": prediction,
            "confidence": probability[images, prediction],
            "image_nll": -log,
        }

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> AccuracyResult:
        """Means over all images, whatever the order of the partials."""
        from retinoscope.numerics.running import Mean

        there = [partial for partial in partials if "index" in partial]
        images = sum(len(partial["index"]) for partial in there)
        if images < _FEWEST:
            raise NotApplicable(
                f"needs {_FEWEST} or more labelled test images of classes that the model knows; "
                f"there {'is' if images == 1 else 'are'} {images}"
            )
        every = {name: np.concatenate([partial[name] for partial in there]) for name in _ARRAYS}
        order = np.argsort(every["index"])
        every = {name: array[order] for name, array in every.items()}
        right, nll = Mean.of(every["label"] == every["prediction"]), Mean.of(every["image_nll"])
        if lost := int((~np.isfinite(every["image_nll"])).sum()):
            raise RetinoscopeError(
                f"The logits of {lost} of {images} images are no finite numbers. Are the weights "
                "whole, and do they fit --mean, --std and --precision?"
            )
        return AccuracyResult(
            images=images,
            classes=anatomy.units[-1].channels,
            accuracy=float(right.value),
            accuracy_error=float(right.error),
            nll=float(nll.value),
            nll_error=float(nll.error),
            index=every["index"],
            label=every["label"],
            prediction=every["prediction"],
            confidence=every["confidence"],
            image_nll=every["image_nll"],
            kept=_SHARES,
            selective=_selective(every["confidence"], every["label"] == every["prediction"]),
        )


def _selective(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The accuracy of each share of the images, those with the highest confidence first.

    Example:
        >>> _selective(np.array([0.9, 0.5]), np.array([True, False]))[[0, 9, 10, 19]]
        array([1. , 1. , 0.5, 0.5])
    """
    order = np.argsort(-confidence, kind="stable")
    counts = np.ceil(_SHARES * len(order) - 1e-9).astype(int)
    return np.cumsum(right[order])[counts - 1] / counts
