"""A change that can be applied to any model, as settings that can be written down and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn

    from retinoscope.core.anatomy import Anatomy


class Surgery(Protocol):
    """A frozen dataclass whose fields are its settings."""

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A changed copy; ``model`` itself is not modified.

        ``anatomy`` is that of ``model``, or a part of it (``anatomy.where(stage=3)``): only the
        units in it are changed. New parameters are initialised from torch's global generator, like
        those of any module.
        """
        ...
