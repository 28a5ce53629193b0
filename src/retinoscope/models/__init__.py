"""Models by name. Importing this package registers our own models with timm.

After ``import retinoscope.models``, ``timm.create_model("alternet50")`` works, also in other tools
that use timm. The architectures are in ``families``; the code that loads, builds and describes
models is here.
"""

from retinoscope.models.families import FAMILIES, own_models

__all__ = ["FAMILIES", "own_models"]
