"""Accuracy of a network, and its confidence in the correct class.

Top-1 accuracy and negative log-likelihood (NLL) on labelled test images. A low accuracy reveals
wrong preprocessing. The NLL also takes confidence into account, and is the loss that the curvature
probes use. The accuracy of the most confident images shows whether confidence is informative
(Geifman & El-Yaniv, 2017, arXiv:1705.08500). For a network that is random at test time, the
probabilities of its passes are averaged first, as for MC dropout (Gal & Ghahramani, 2016,
arXiv:1506.02142).
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
"""Minimum number of images for a standard error."""
_SHARES = np.arange(1, 21) / 20
_ARRAYS = ("index", "label", "prediction", "confidence", "image_nll")


@answer
class AccuracyResult(Result):
    """``accuracy`` and ``nll`` are means over images; errors are standard errors over images.

    The arrays have one entry per image, in the order of the split. Labels and predictions are
    indices of the model's own classes; ``confidence`` is the probability of the prediction.
    ``selective[k]`` is the accuracy of the fraction ``kept[k]`` of images with the highest
    confidence.
    """

    probe: ClassVar[str] = "accuracy"
    schema: ClassVar[int] = 1

    images: int
    classes: int
    """Number of classes of the model."""
    accuracy: float
    accuracy_error: float
    nll: float
    nll_error: float
    index: np.ndarray = axes("image", unit="index in the split", figure=False)
    label: np.ndarray = axes("image", unit="class", figure=False)
    prediction: np.ndarray = axes("image", unit="class", figure=False)
    confidence: np.ndarray = axes("image", unit="probability", figure=False)
    image_nll: np.ndarray = axes("image", unit="NLL (nats)", figure=False)
    kept: np.ndarray = axes("kept", unit="fraction of images, most confident first", figure=False)
    selective: np.ndarray = axes(
        "kept", unit="accuracy", x="kept",
        title="Accuracy of the most confident images, by the fraction kept",
    )  # fmt: skip

    def findings(self) -> list[str]:
        """Accuracy and NLL, and whether guessing would be as accurate."""
        said = [
            f"{self.in_short()} accuracy on {wording.count(self.images, 'image')}, NLL "
            f"{wording.number(self.nll, 3)} ± {wording.number(self.nll_error, 2)}"
        ]
        if self.accuracy - 2 * self.accuracy_error <= 1 / self.classes:
            said.append(
                f"guessing among {self.classes:,} classes would be as accurate: are the weights "
                "trained, and do --size, --mean and --std match them?"
            )
        return said

    def in_short(self) -> str:
        """The accuracy with its standard error, both in percent.

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
    question: ClassVar[str] = "How accurate is the model, and how confident?"
    reading: ClassVar[str] = (
        "Accuracy is the fraction of test images whose most likely class is correct. An accuracy "
        "far below the published one usually means wrong preprocessing: compare size, mean and "
        "standard deviation. The NLL also measures how much probability the correct class gets: a "
        "uniform guess among K classes has an NLL of ln K. The curve shows the accuracy of only "
        "the most confident images: if it falls from left to right, confidence tells which "
        "predictions are reliable."
    )

    @property
    def needs(self) -> Needs:
        """Labelled test images; all units are visited, because logits have no spatial positions."""
        return Needs(split="test", labels=True, maps=False)

    def watch(self, sight: Sight) -> dict[str, Tensor] | None:
        """Probabilities (N, K) and their logarithms, in double precision; None for feature maps."""
        from torch.nn.functional import log_softmax

        grid = sight.unit.grid
        if grid is not None and grid.height * grid.width > 1:
            return None
        log = log_softmax(sight.raw.flatten(1).cpu().double(), 1)
        return {"probability": log.exp(), "log_probability": log}

    def gather(self, group: Group) -> Partial:
        """Each image's label, prediction and NLL; the last unit's state contains the logits."""
        if not group.indices:
            return {}
        rows = group.rows.get(group.anatomy.units[-1].name)
        if rows is None or group.labels is None:
            raise NotApplicable(
                "needs one vector of logits per image; the model's output has another shape"
            )
        images, labels = np.arange(len(group.labels)), group.labels
        probability = rows["probability"]
        right = probability[images, labels]
        # For a network that is random at test time, both are means over passes, and the first is
        # the correct one. It may be too small for a double although its logarithm is not.
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
        """Means over all images, independent of the order of the partials."""
        from retinoscope.numerics.running import Mean

        there = [partial for partial in partials if "index" in partial]
        images = sum(len(partial["index"]) for partial in there)
        if images < _FEWEST:
            raise NotApplicable(
                f"needs at least {_FEWEST} labelled test images of classes that the model knows; "
                f"there {'is' if images == 1 else 'are'} {images}"
            )
        every = {name: np.concatenate([partial[name] for partial in there]) for name in _ARRAYS}
        order = np.argsort(every["index"])
        every = {name: array[order] for name, array in every.items()}
        right, nll = Mean.of(every["label"] == every["prediction"]), Mean.of(every["image_nll"])
        if lost := int((~np.isfinite(every["image_nll"])).sum()):
            raise RetinoscopeError(
                f"The logits of {lost} of {images} images are not finite. Are the weights "
                "undamaged, and do they match --mean, --std and --precision?"
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
    """The accuracy of growing fractions of the images, the most confident first.

    Example:
        >>> _selective(np.array([0.9, 0.5]), np.array([True, False]))[[0, 9, 10, 19]]
        array([1. , 1. , 0.5, 0.5])
    """
    order = np.argsort(-confidence, kind="stable")
    counts = np.ceil(_SHARES * len(order) - 1e-9).astype(int)
    return np.cumsum(right[order])[counts - 1] / counts
