"""What a probe has at hand while it measures, beside the subject: per task, not part of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from retinoscope.core.subject import Subject


@dataclass(frozen=True)
class Context:
    """Handed to ``measure``: what was prepared, further subjects, and a way to say something."""

    prepared: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What the probe's ``prepare`` gave; empty for probes that prepare nothing."""
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    """Reports a deviation from what was asked: shown to the user, and noted in the run."""
    load: Callable[[str], Subject] | None = field(default=None, repr=False)

    def another(self, name: str) -> Subject:
        """A further subject on the same images: a second model, a member, a snapshot."""
        if self.load is None:
            raise LookupError(f"This context knows no further subjects; asked for {name!r}.")
        return self.load(name)
