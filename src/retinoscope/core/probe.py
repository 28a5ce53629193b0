"""The contract of a question that is asked of a subject.

A **probe** splits its work into independent pieces, measures each, and combines what they gave in
any order into the same result. A **watcher** only looks at feature maps as they pass; one shared
pass through the network serves all watchers. The fields of either are its settings: they become
flags of the command line, stand in every protocol, and are part of the key of what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

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
class Watcher(_Question, Protocol):
    """A question that the feature maps of one pass answer."""

    def watch(self, unit: Unit, maps: Tensor) -> Tensor:
        """What is kept of one unit's maps (N, C, H, W) of one batch: a row per image."""
        ...

    def gather(self, anatomy: Anatomy, rows: Mapping[str, np.ndarray]) -> Partial:
        """What is stored of a whole shard: the rows of all its images, by unit."""
        ...
