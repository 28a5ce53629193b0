"""A change of any model, as settings that can be written down and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn

    from retinoscope.core.anatomy import Anatomy


class Surgery(Protocol):
    """A frozen dataclass whose fields are its settings."""

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A changed copy; ``model`` itself is left untouched.

        ``anatomy`` is that of ``model``, or a part of it (``anatomy.where(stage=3)``): only units
        that it holds are operated on. New parameters are drawn from torch's global generator, as
        those of any module are.
        """
        ...
