"""Mapping from the classes of the data to the outputs of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

_WORDNET = re.compile(r"n\d{8}(?!\d)")
_NUMBERED = re.compile(r"(label|class)?\s*\d+")


def map_classes(
    found: Sequence[str], outputs: int, known: Sequence[str] | None = None
) -> np.ndarray | None:
    """The model's output for each class of the data, or -1; int64 (len(found),).

    Names are compared without case, punctuation and underscores. A name may list synonyms,
    separated by commas; one match is enough. A name that matches several outputs is mapped to the
    one whose full name it is (``maillot``, ``cardigan``), otherwise to the one whose first synonym
    it is (``gong``). If that is ambiguous too, as for the two outputs of ImageNet called ``crane``,
    it is -1. Only names are compared: a ``mouse`` that is an animal is mapped to ImageNet's
    computer mouse.

    The model's own names are tried first. If the model has as many outputs as ImageNet or one of
    its larger variants, WordNet ids (``n01440764``, also ``n02085620-Chihuahua``) or words are
    tried next. If the data have as many classes as the model has outputs, and fewer than half of
    them are such words, both are assumed to be in the same order, unless both have names that do
    not match.

    Args:
        found: The class names of the data.
        outputs: Number of outputs of the model.
        known: The model's own names of its outputs, if it has any.

    Returns:
        The outputs, or None if no class of the data has one: labels cannot be compared.

    Example:
        >>> map_classes(["tench", "unicorn", "great_white_shark"], 1000)
        array([ 0, -1,  2])
        >>> map_classes(["cat", "dog"], 2)
        array([0, 1])
        >>> map_classes(["cat", "dog"], 2, known=["Dog", "cat, house cat"])
        array([1, 0])
    """
    mapped = None if known is None else _match(found, known[:outputs])
    if mapped is None:
        mapped = _match_wordnet(found, outputs)
    nameless = known is None or _are_numbers(known) or _are_numbers(found)
    if mapped is None and len(found) == outputs and nameless:
        return np.arange(outputs)
    return mapped


def _match(found: Sequence[str], known: Iterable[str]) -> np.ndarray | None:
    """The index in ``known`` of each name, or -1; None if no name matches."""
    whole: dict[str, set[int]] = {}
    first: dict[str, set[int]] = {}
    synonym: dict[str, set[int]] = {}
    for number, name in enumerate(known):
        words = [_plain(word) for word in name.split(",")]
        whole.setdefault(_plain(name), set()).add(number)
        first.setdefault(words[0], set()).add(number)
        for word in words:
            synonym.setdefault(word, set()).add(number)
    mapped = np.full(len(found), -1, dtype=np.int64)
    for index, name in enumerate(found):
        words = [_plain(word) for word in name.split(",")]
        for table, tried in ((whole, [_plain(name)]), (first, words), (synonym, words)):
            candidates = {number for word in tried if word for number in table.get(word, ())}
            if candidates:
                mapped[index] = candidates.pop() if len(candidates) == 1 else -1
                break
    return mapped if (mapped >= 0).any() else None


def _match_wordnet(found: Sequence[str], outputs: int) -> np.ndarray | None:
    """The ImageNet output of each WordNet id or word, or -1; None if they do not match."""
    ids = {name: number for number, name in enumerate(_wordnet_ids(outputs))}
    if not ids:
        return None
    stems = [_WORDNET.match(name) for name in found]
    if any(stems):
        mapped = np.array([ids.get(stem.group(), -1) if stem else -1 for stem in stems])
        return mapped if (mapped >= 0).any() else None
    mapped = _match(found, _wordnet_words(outputs))
    # As many classes as outputs, but few names from ImageNet: neither is likely to be ImageNet.
    if mapped is not None and len(found) == outputs and (mapped >= 0).mean() < 0.5:
        return None
    return mapped


def _plain(name: str) -> str:
    """A name without case, punctuation and underscores.

    Example:
        >>> _plain("Jack-o'-Lantern"), _plain("aquarium_fish ")
        ('jack o lantern', 'aquarium fish')
    """
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether the names are only numbers, such as ``LABEL_3``."""
    return all(_NUMBERED.fullmatch(_plain(name)) for name in names)


@cache
def _wordnet_ids(outputs: int) -> tuple[str, ...]:
    """The WordNet id of each output; empty if no variant of ImageNet has so many outputs."""
    # Imported here, because importing timm takes a second.
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": outputs})
    return tuple(ImageNetInfo(subset).label_names()) if subset else ()


@cache
def _wordnet_words(outputs: int) -> tuple[str, ...]:
    """The WordNet words of each output, synonyms separated by commas."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": outputs})
    return tuple(ImageNetInfo(subset).label_descriptions()) if subset else ()
