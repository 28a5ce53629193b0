"""Models by name. Importing this room registers our own with timm.

After ``import retinoscope.models``, ``timm.create_model("alternet50")`` and every tool that speaks
timm know them. The networks themselves are in ``families``; what loads, builds and describes any
model is here.
"""

from retinoscope.models.families import FAMILIES, own_models

__all__ = ["FAMILIES", "own_models"]
