"""The contract of a question that is asked of a subject.

A **probe** splits its work into independent pieces, measures each, and combines what they gave in
any order into the same result. A **watcher** only looks at feature maps as they pass; one shared
pass through the network serves all watchers. The fields of either are its settings: they become
flags of the command line, stand in every protocol, and are part of the key of what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.result import Result
from retinoscope.core.unit import Unit

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from retinoscope.core.subject import Subject

Partial = Mapping[str, "np.ndarray"]
"""What one piece gave: arrays by name, as they are written to disk."""


@dataclass(frozen=True)
class Needs:
    """What a probe cannot do without; where a subject lacks it, the probe is not applicable."""

    split: str = "test"
    augmented: bool = False
    """Whether the images come as in training: augmented, perhaps with soft targets."""
    labels: bool = False
    others: tuple[str, ...] = ()
    """Further subjects by the names of their models; see :meth:`Subject.another`."""
    snapshots: str | None = None
    """Weights along a training: a folder, or the training that the subject's own come from if it
    is empty; see :mod:`retinoscope.models.snapshots`. None where they are not needed."""


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
    return Needs(split, augmented=images == "augmented", labels=True)


@dataclass(frozen=True)
class Piece:
    """One part of a probe's work: a shard of images, a row of a landscape, a corruption."""

    name: str
    """Unique within the probe; letters, digits and ``-_.`` only, for it names a file."""
    what: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that say what to do."""
    first: bool = False
    """Whether it is done before all others, which find what it gave in ``Subject.given``."""


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
        """All partials, in the order of the pieces, to the answer."""
        ...


@runtime_checkable
class Probe(_Question, Protocol):
    """A question whose work comes in independent pieces."""

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """The parts of the work; the same for the same subject and settings."""
        ...

    def measure(self, subject: Subject, piece: Piece) -> Partial:
        """Do one part. Nothing but subject, settings and piece may decide what comes out."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A probe that can say beforehand how long it will take, since it may take hours."""

    def seconds(self, subject: Subject) -> float:
        """How long a piece will take here, by a short trial."""
        ...


@runtime_checkable
class Watcher(_Question, Protocol):
    """A question that the feature maps of one pass answer."""

    def watch(self, unit: Unit, maps: Tensor) -> Tensor:
        """What is kept of one unit's maps (N, C, H, W) of one batch: a row per image."""
        ...

    def gather(self, anatomy: Anatomy, rows: Mapping[str, np.ndarray]) -> Partial:
        """What is stored of a whole shard: the rows of all its images, by unit."""
        ...
