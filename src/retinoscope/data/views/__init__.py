"""Ways to see an image otherwise than it is, one per file; each fulfils ``PixelView``.

A view of your own needs nothing here: any frozen dataclass with ``seed`` and ``see`` is one.
"""

from retinoscope.data.views.corrupted import Corrupted
from retinoscope.data.views.noised import Noised
from retinoscope.data.views.occluded import Occluded

__all__ = ["Corrupted", "Noised", "Occluded"]
