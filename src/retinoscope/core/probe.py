"""The contract of a question that is asked of a subject.

A **probe** splits its work into independent pieces, measures each, and combines what they gave in
any order into the same result. A **watcher** only looks at states as they pass; one shared pass
through the network serves all watchers. The fields of either are its settings: they are written
``name:key=value``, stand in every protocol, and are part of the key of what was measured.
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
"""What one piece gave: arrays by name, as they are written to disk."""

Tap = Literal["queries", "keys", "values", "weights", "branch"]
"""What can be seen inside a unit; see :meth:`Sight.tap`."""


@dataclass(frozen=True)
class Needs:
    """What a probe cannot do without; where a subject lacks it, the probe is not applicable."""

    split: str = "test"
    view: View = CLEAN
    """How the images are seen; see :mod:`retinoscope.core.view`."""
    labels: bool = False
    others: tuple[str, ...] = ()
    """Further subjects by the names of their models; see :meth:`Context.another`."""
    snapshots: str | None = None
    """Weights along a training: a folder, or the training that the subject's own come from if it
    is empty; see :mod:`retinoscope.models.snapshots`. None where they are not needed."""
    maps: bool = True
    """For watchers: whether only units whose state is spread over positions are of interest."""
    group: int | None = None
    """For watchers: how many images ``watch`` must see together, always the same ones: group g
    holds the images g·group to (g + 1)·group − 1 of the split, less those that cannot be read.
    None where each image is seen for itself, so that memory may decide how many come at once."""
    taps: frozenset[Tap] = frozenset()
    """For watchers: what they look at inside units; nothing else is kept for them."""


Images = Literal["augmented", "clean", "test"]
"""Which images a loss is taken over."""
IMAGES = "Training images as in training, training images as they are (clean), or test images."


def labelled_images(images: Images) -> Needs:
    """What a probe of the loss needs.

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
    """Unique within the probe; letters, digits and ``-_.`` only, for it names a file."""
    what: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that say what to do."""


class _Question(Protocol):
    """What probes and watchers have in common; both are frozen dataclasses."""

    result: ClassVar[type[Result]]
    """What its answers are; they carry the probe's name."""
    schema: ClassVar[int]
    """Raised when the same settings come to give other numbers."""
    question: ClassVar[str]
    """What is asked, in one sentence."""
    reading: ClassVar[str]
    """How to read the answer, for someone who sees it for the first time."""

    @property
    def needs(self) -> Needs:
        """What must be there; part of the key."""
        ...

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> Result:
        """All partials to the answer: what ``prepare`` gave first, then those of the pieces."""
        ...


@runtime_checkable
class Probe(_Question, Protocol):
    """A question whose work comes in independent pieces."""

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The parts of the work; the same for the same subject and settings."""
        ...

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Do one part. Only subject, settings, piece and what was prepared may decide it."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A probe with work that is done once, before its pieces, and read by all of them."""

    def prepare(self, subject: Subject, context: Context) -> Partial:
        """What all pieces find in ``context.prepared``; kept on disk like a piece."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A probe that can say beforehand how long it will take, since it may take hours."""

    def seconds(self, subject: Subject, context: Context) -> float:
        """How long a piece will take here, by a short trial."""
        ...


@runtime_checkable
class Watcher(_Question, Protocol):
    """A question that the states of one pass answer."""

    def watch(self, sight: Sight) -> Tensor | Mapping[str, Tensor] | None:
        """What is kept of one unit's state: a row per image, or anything where a group is needed.

        Several by name if need be; None where the unit is of no interest.
        """
        ...

    def gather(self, group: Group) -> Partial:
        """What is stored of a group of images: all its units together."""
        ...
