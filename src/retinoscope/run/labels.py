"""Which of a model's answers the labels of the data mean, or why they mean none."""

from __future__ import annotations

import numpy as np
from torch import nn

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.wording import listed
from retinoscope.data.classes import map_classes
from retinoscope.data.source import Source


def has_classifier(model: nn.Module, anatomy: Anatomy) -> bool:
    """Whether a network ends in a layer that maps features to classes.

    It does not if it says that it has no classes (``num_classes=0``), or if its last unit has no
    learned matrix: a norm has two numbers per channel, a pooling layer none.
    """
    if getattr(model, "num_classes", None) == 0:
        return False
    last = anatomy.units[-1]
    return last.parameters > 2 * last.channels


def model_classes(
    source: Source, outputs: int, known: tuple[str, ...] | None, classifier: bool = True
) -> tuple[np.ndarray | None, str]:
    """The model's class of each class of the source, or why there is none, and what to do.

    Names and numbers of classes decide; only where they do not fit does it matter whether the
    network looks as if it had a classifier.

    Args:
        source: Images, perhaps with labels and names of classes.
        outputs: How many numbers the model answers with.
        known: What the model calls them, if it says so.
        classifier: Whether these are classes; see :func:`has_classifier`.
    """
    labelled = source.labels is not None and source.classes is not None
    classes = map_classes(source.classes, outputs, known) if source.classes and labelled else None
    if classes is not None:
        return classes, ""
    if not classifier:
        return None, (
            f"the network has no classifier: it answers with {outputs:,} features. Give it one "
            "with weights that fit (MODEL:num_classes=10, --weights FILE)"
        )
    if not labelled:
        return None, (
            "these images have no labels. Put them into a folder per class (FOLDER/CLASS/x.jpg)"
        )
    return None, (
        f"the {len(source.classes or ())} classes of the data cannot be matched with the {outputs} "
        f"answers of the model: {listed(source.classes or ())}. Name the class folders after the "
        "model's classes (WordNet ids or words for ImageNet), or take a model that was trained on "
        "these data"
    )
