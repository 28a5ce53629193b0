"""The context of a task: what a probe can use besides the subject. It is not part of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from retinoscope.core.subject import Subject


@dataclass(frozen=True)
class Context:
    """Passed to ``measure``: prepared data, further subjects, and a function for notices."""

    prepared: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The output of the probe's ``prepare``; empty for probes without one."""
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    """Report a deviation from the request; it is shown to the user and recorded in the run."""
    load: Callable[[str], Subject] | None = field(default=None, repr=False)

    def another(self, name: str) -> Subject:
        """A further subject on the same images: a second model, an ensemble member, a snapshot."""
        if self.load is None:
            raise LookupError(f"This context has no further subjects; {name!r} was requested.")
        return self.load(name)
