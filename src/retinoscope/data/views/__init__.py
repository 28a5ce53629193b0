"""Views that change each image, one per file; each implements ``PixelView``.

Your own view needs no entry here: any frozen dataclass with ``seed`` and ``see`` is a view.
"""

from retinoscope.data.views.corrupted import Corrupted
from retinoscope.data.views.gaussian import GaussianImages
from retinoscope.data.views.noised import Noised
from retinoscope.data.views.occluded import Occluded

__all__ = ["Corrupted", "GaussianImages", "Noised", "Occluded"]
