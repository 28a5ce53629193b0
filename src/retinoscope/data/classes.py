"""Which output of a model means the same as a class of the data."""

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
    """For each class of the data the model's output that means it, or -1; int64 (len(found),).

    Names are compared without case, punctuation and underscores, and any of several synonyms
    between commas will do. A name that fits several outputs goes to the one it is the whole name
    of (``maillot``, ``cardigan``), else to the one it is the first synonym of (``gong``); where
    that does not decide either, as for the two outputs of ImageNet that are called ``crane``, it
    is -1. The names alone decide: a ``mouse`` that is an animal goes to ImageNet's computer mouse.

    The model's own names come first. A model with as many outputs as ImageNet or one of the larger
    sets made of it has WordNet's: ids (``n01440764``, also ``n02085620-Chihuahua``), else words.
    Data with as many classes as the model has outputs, fewer than half of which are such words, are
    taken to be in the model's own order, unless both have names and these do not fit.

    Args:
        found: The names of the data's classes.
        outputs: How many the model has.
        known: What the model calls them, if it says so.

    Returns:
        The outputs, or None if not one class of the data has one: labels cannot be compared.

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
    """The position in ``known`` of each name, or -1; None if there is none at all."""
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
    """The outputs of an ImageNet by WordNet's ids or words, or -1; None if they do not fit."""
    ids = {name: number for number, name in enumerate(_wordnet_ids(outputs))}
    if not ids:
        return None
    stems = [_WORDNET.match(name) for name in found]
    if any(stems):
        mapped = np.array([ids.get(stem.group(), -1) if stem else -1 for stem in stems])
        return mapped if (mapped >= 0).any() else None
    mapped = _match(found, _wordnet_words(outputs))
    # As many classes as outputs, few of them ImageNet's: a set and a model of their own.
    if mapped is not None and len(found) == outputs and (mapped >= 0).mean() < 0.5:
        return None
    return mapped


def _plain(name: str) -> str:
    """A name without what is written in different ways.

    Example:
        >>> _plain("Jack-o'-Lantern"), _plain("aquarium_fish ")
        ('jack o lantern', 'aquarium fish')
    """
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether names say no more than their order does, such as ``LABEL_3``."""
    return all(_NUMBERED.fullmatch(_plain(name)) for name in names)


@cache
def _wordnet_ids(outputs: int) -> tuple[str, ...]:
    """The WordNet id of each output, if the number of outputs is that of an ImageNet."""
    # timm takes a second to import, and nobody else here needs it.
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": outputs})
    return tuple(ImageNetInfo(subset).label_names()) if subset else ()


@cache
def _wordnet_words(outputs: int) -> tuple[str, ...]:
    """The words for each output, synonyms between commas."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": outputs})
    return tuple(ImageNetInfo(subset).label_descriptions()) if subset else ()
