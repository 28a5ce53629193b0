"""The interface of probes and watchers, the two kinds of questions about a subject.

A **probe** splits its work into independent pieces, measures each, and combines their outputs into
a result that does not depend on their order. A **watcher** only looks at states during a forward
pass; one shared pass through the network serves all watchers. The fields of both are their
settings: they are written ``name:key=value``, appear in every protocol, and are part of the key of
the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.context import Context
from retinoscope.core.result import Result
from retinoscope.core.sight import Group, Sight
from retinoscope.core.view import AUGMENTED, CLEAN, View

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from retinoscope.core.subject import Subject

Partial = Mapping[str, "np.ndarray"]
"""The output of one piece: arrays by name, as they are written to disk."""

Tap = Literal["queries", "keys", "values", "weights", "softmax", "branch"]
"""Intermediate values that can be read inside a unit; see :meth:`Sight.tap`."""


UNTRAINED = "untrained"
"""A name for :attr:`Needs.others`: the same network with random weights."""


@dataclass(frozen=True)
class Needs:
    """What a probe requires; if the subject lacks it, the probe is not applicable."""

    split: str = "test"
    view: View = CLEAN
    """The view of the images; see :mod:`retinoscope.core.view`."""
    labels: bool | Literal["optional"] = False
    """Whether images must have labels; if optional, labels are used where the subject has them."""
    others: tuple[str, ...] = ()
    """Further subjects by the names of their models; see :meth:`Context.another`. ``UNTRAINED`` is
    the subject's own network with random weights."""
    snapshots: str | None = None
    """Weights along a training: a folder, or "" for the training that the subject's own weights
    come from; see :mod:`retinoscope.models.snapshots`. None if not needed."""
    maps: bool = True
    """For watchers: whether to visit only units whose state has more than one position."""
    group: int | None = None
    """For watchers: the number of images that ``watch`` must see together, always the same ones:
    group g contains images g·group to (g + 1)·group − 1 of the split, except those that cannot be
    read. None if each image is treated on its own, so that memory may decide the batch size."""
    taps: frozenset[Tap] = frozenset()
    """For watchers: the taps that they read inside units; nothing else is kept for them."""


Images = Literal["augmented", "clean", "test"]
"""The images over which a loss is computed."""
IMAGES = (
    "Training images as in training, training images without augmentation (clean), or test images."
)


def labelled_images(images: Images) -> Needs:
    """The needs of a probe of the loss.

    Example:
        >>> labelled_images("clean").split, labelled_images("test").split
        ('train', 'test')
    """
    split = "test" if images == "test" else "train"
    return Needs(split, AUGMENTED if images == "augmented" else CLEAN, labels=True)


@dataclass(frozen=True)
class Piece:
    """One part of a probe's work: a shard of images, a row of a landscape, a corruption."""

    name: str
    """Unique within the probe; letters, digits and ``-_.`` only, since it is a file name."""
    what: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that describe the work."""


class _Question(Protocol):
    """The common part of probes and watchers; both are frozen dataclasses."""

    result: ClassVar[type[Result]]
    """The class of the results, which carries the probe's name."""
    schema: ClassVar[int]
    """Increased when the same settings give different numbers than before."""
    question: ClassVar[str]
    """The question, in one sentence."""
    reading: ClassVar[str]
    """How to read the result, for a reader who sees it for the first time."""

    @property
    def needs(self) -> Needs:
        """What the subject must provide; part of the key."""
        ...

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> Result:
        """Combine all partials into the result: that of ``prepare`` first, then the pieces'."""
        ...


@runtime_checkable
class Probe(_Question, Protocol):
    """A question whose work is split into independent pieces."""

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The pieces of the work; the same for the same subject and settings."""
        ...

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Measure one piece. It may depend only on subject, settings, piece and prepared data."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A probe with work that is done once, before its pieces, and read by all of them."""

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """The data that all pieces find in ``context.prepared``; stored on disk like a piece."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A probe that can estimate its own time, because it may take hours."""

    def seconds(self, subject: Subject, context: Context) -> float:
        """The estimated seconds per piece on this machine, from a short trial."""
        ...


@runtime_checkable
class Watcher(_Question, Protocol):
    """A question that the states of one forward pass answer."""

    def watch(self, sight: Sight) -> Tensor | Mapping[str, Tensor] | None:
        """What to keep of one unit's state: one row per image, or anything if a group is needed.

        Several arrays by name if necessary; None if the unit is not of interest.
        """
        ...

    def gather(self, group: Group) -> Partial:
        """What to store for a group of images, from all its units together."""
        ...
