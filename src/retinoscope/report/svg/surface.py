"""A map as a surface that readers of the report can rotate."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from markupsafe import Markup

from retinoscope.core.wording import axis_number, number
from retinoscope.figures.colours import shade
from retinoscope.figures.figure import Map, scale_of
from retinoscope.report.svg.markup import tag


def surface(chart: Map) -> Markup:
    """A canvas that the page's script draws on; hidden if scripts are disabled.

    Heights are positions on the scale; clipped values are flat, and values that are not finite
    leave a hole.
    """
    scale, labels = scale_of(chart), chart.labels
    heights = np.clip(scale.share(chart.values), 0, 1)
    if not np.isfinite(heights).any():
        return Markup("")
    cut = f", clipped above {number(scale.high, 3)}" if scale.clipped else ""
    data: dict[str, Any] = {
        "x": _spread(chart.x), "y": _spread(chart.y),
        "z": [[None if math.isnan(v) else round(v, 4) for v in row] for row in heights.tolist()],
        "ends": [[number(p.min(), 3), number(p.max(), 3)] for p in (chart.x, chart.y)],
        "levels": [
            [round(float(scale.share(np.array(v))), 4), axis_number(v)] for v in scale.levels()
        ],
        "labels": [*labels[:2], f"{labels[2]}{', logarithmic' if scale.log else ''}{cut}"],
        "colours": [_rgb(shade(step / 24, scale.table)) for step in range(25)],
    }  # fmt: skip
    return tag(
        "canvas", class_="surface", width="920", height="760", tabindex="0", role="img", hidden="",
        aria_label=
            f"{labels[2]} as a surface over {labels[0]} and {labels[1]}{cut}. Rotate it with the "
            "pointer or the arrow keys.",
        data_surface=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
    )  # fmt: skip


def _spread(places: np.ndarray) -> list[float]:
    """Coordinates from −1 to 1."""
    low, high = float(places.min()), float(places.max())
    return [round(2 * (v - low) / (high - low) - 1, 4) for v in places.tolist()]


def _rgb(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
