"""The values of a map as colours and as heights: the surface that a reader of the page can turn."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from retinoscope.report.chart import plain, ticks
from retinoscope.report.markup import tag

_VIRIDIS = (
    (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128),
    (94, 201, 98), (173, 220, 48), (253, 231, 37),
)  # fmt: skip
_LIGHTEST = 0.88
"""The lightest yellow cannot be seen on white."""
_TIMES = 5.0
"""How far above the lowest value colours go, in distances from there to the median.

A bowl is about 3 medians high at the corners of a square, so only what explodes is clipped.
"""
_EXPLODES = 20.0
"""How many times the quartiles' heights differ where only a logarithm shows both."""


@dataclass(frozen=True)
class Scale:
    """Which values a map tells apart by colour: linear, or logarithmic where the loss explodes."""

    low: float
    high: float
    log: bool = False
    clipped: bool = False
    """Whether there are values above ``high``."""

    @classmethod
    def of(cls, values: np.ndarray) -> Scale:
        """The scale of all finite values; a few very large ones do not make the others alike."""
        finite = np.asarray(values, dtype=float)[np.isfinite(values)]
        if not finite.size:
            return cls(0.0, 1.0)
        low, quarter, middle, most, high = np.quantile(finite, (0, 0.25, 0.5, 0.75, 1)).tolist()
        log = low > 0 and most - low > _EXPLODES * (quarter - low) > 0
        if log:
            limit = low * (middle / low) ** min(_TIMES, 300 / max(1.0, math.log10(middle / low)))
        else:
            limit = low + _TIMES * (middle - low)
        if low < limit < high:
            return cls(low, limit, log, True)
        return cls(low, high if high > low else low + (0.1 * abs(low) or 0.1), log)

    def share(self, values: np.ndarray) -> np.ndarray:
        """0 for the lowest value to 1 for the highest; what is clipped is above 1, NaN the rest."""
        values = np.where(np.isfinite(values), values, np.nan)
        if self.log:
            return np.log(values / self.low) / math.log(self.high / self.low)
        return (values - self.low) / (self.high - self.low)

    def levels(self) -> list[float]:
        """Round values for iso-lines and the numbers beside the colours."""
        if not self.log:
            return ticks(self.low, self.high, 8)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        digits = (1, 2, 5) if last - first <= 3 else (1,)
        every = max(1, (last - first) // 8)
        rounds = [d * 10.0**e for e in range(first, last + 1, every) for d in digits]
        return [v for v in rounds if self.low <= v <= self.high]


def colour(share: float) -> tuple[int, ...]:
    """Red, green and blue of the viridis map, dark for 0."""
    place = _LIGHTEST * min(1.0, max(0.0, share)) * (len(_VIRIDIS) - 1)
    low = min(int(place), len(_VIRIDIS) - 2)
    return tuple(
        round(a + (b - a) * (place - low))
        for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )


def shade(share: float) -> str:
    """The same as a web colour.

    Example:
        >>> shade(0.0)
        '#440154'
    """
    return "#" + "".join(f"{channel:02x}" for channel in colour(share))


def surface(
    x: np.ndarray, y: np.ndarray, values: np.ndarray, labels: tuple[str, str, str], scale: Scale
) -> Markup:
    """A canvas that the page's script draws on; hidden where no script runs.

    Heights are shares of the scale, what is clipped is level, and where a value is no finite number
    there is a hole.
    """
    heights = np.clip(scale.share(values), 0, 1)
    if not np.isfinite(heights).any():
        return Markup("")
    cut = f", clipped above {_brief(scale.high)}" if scale.clipped else ""
    data: dict[str, Any] = {
        "x": _spread(x), "y": _spread(y),
        "z": [[None if math.isnan(v) else round(v, 4) for v in row] for row in heights.tolist()],
        "ends": [[_brief(places.min()), _brief(places.max())] for places in (x, y)],
        "levels": [[round(float(scale.share(np.array(v))), 4), plain(v)] for v in scale.levels()],
        "labels": [*labels[:2], f"{labels[2]}{', logarithmic' if scale.log else ''}{cut}"],
        "colours": [colour(step / 24) for step in range(25)],
    }  # fmt: skip
    return tag(
        "canvas", class_="surface", width="920", height="760", tabindex="0", role="img", hidden="",
        aria_label=f"{labels[2]} as a surface over {labels[0]} and {labels[1]}{cut}. "
        "Turn it with the pointer or the arrow keys.",
        data_surface=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
    )  # fmt: skip


def _spread(places: np.ndarray) -> list[float]:
    """Places from −1 to 1."""
    low, high = float(places.min()), float(places.max())
    return [round(2 * (v - low) / (high - low) - 1, 4) for v in places.tolist()]


def _brief(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")
