"""Matches the labels of the data with the model's classes, or explains why that is impossible."""

from __future__ import annotations

import numpy as np
from torch import nn

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.wording import listed
from retinoscope.data.classes import map_classes
from retinoscope.data.source import Source


def has_classifier(model: nn.Module, anatomy: Anatomy) -> bool:
    """Whether a network ends in a layer that maps features to classes.

    It does not if ``num_classes`` is 0, or if its last unit has no learned matrix: a norm has two
    parameters per channel, a pooling layer has none.
    """
    if getattr(model, "num_classes", None) == 0:
        return False
    last = anatomy.units[-1]
    return last.parameters > 2 * last.channels


def model_classes(
    source: Source, outputs: int, known: tuple[str, ...] | None, classifier: bool = True
) -> tuple[np.ndarray | None, str]:
    """Map each class of the source to a model class, or say why that fails and what to do.

    The match uses the names and the number of classes. Whether the network seems to have a
    classifier matters only if these do not match.

    Args:
        source: Images, optionally with labels and class names.
        outputs: Number of model outputs.
        known: The model's own names for its outputs, if known.
        classifier: Whether the outputs are classes; see :func:`has_classifier`.
    """
    labelled = source.labels is not None and source.classes is not None
    classes = map_classes(source.classes, outputs, known) if source.classes and labelled else None
    if classes is not None:
        return classes, ""
    if not classifier:
        unlabelled = "" if labelled else "these images have no labels, and "
        return None, (
            f"{unlabelled}the network has no classifier: its output is {outputs:,} features. Give "
            "it one with matching weights (MODEL:num_classes=10, --weights FILE)"
        )
    if not labelled:
        return None, (
            "these images have no labels. Sort them into one folder per class (FOLDER/CLASS/x.jpg)"
        )
    return None, (
        f"the {len(source.classes or ())} classes of the data cannot be matched with the "
        f"{outputs} outputs of the model: {listed(source.classes or ())}. Name the class folders "
        "after the model's classes (WordNet ids or words for ImageNet), or use a model that was "
        "trained on these data"
    )
