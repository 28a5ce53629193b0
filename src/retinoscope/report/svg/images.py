"""Images as SVG: each embedded as a small PNG file."""

from __future__ import annotations

import base64
import io

import numpy as np
from markupsafe import Markup
from PIL import Image

from retinoscope.core.wording import shortened
from retinoscope.figures.figure import Images, scale_of
from retinoscope.report.svg.markup import tag
from retinoscope.report.svg.pen import WIDTH, clipping, drawing, legend_above, text

_GAP, _CAPTION = 6.0, 16.0
_LARGEST = 128
"""Maximum pixels per side; larger images are reduced, because the page would not show more."""


def images_svg(chart: Images) -> Markup:
    """Images in rows with captions below, and the colour scale above unless they are RGB."""
    side = min(150.0, (WIDTH - _GAP) / chart.columns - _GAP)
    height = side * chart.values.shape[1] / chart.values.shape[2]
    top = 0.0 if chart.plain else 22.0
    parts = []
    if not chart.plain:
        scale = scale_of(chart)
        cut = clipping(scale, scale.share(chart.values))
        parts += legend_above(scale, f"{chart.label}; {cut}" if cut else chart.label, 14.0)
    for index, caption in enumerate(chart.captions):
        row, column = divmod(index, chart.columns)
        x, y = _GAP + column * (side + _GAP), top + _GAP + row * (height + _CAPTION + _GAP)
        parts.append(
            tag("image", tag("title", caption), href=_address(chart.pixels(index)), x=x, y=y,
                width=side, height=height, preserveAspectRatio="none", class_="point",
                style="image-rendering:pixelated", data_label=caption)
        )  # fmt: skip
        parts.append(text(shortened(caption, int(side / 5.6)), x + side / 2, y + height + 12))
    rows = -(-len(chart.values) // chart.columns)
    whole = top + _GAP + rows * (height + _CAPTION + _GAP)
    return drawing(parts, chart.name, whole, "chart images")


def _address(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((_LARGEST, _LARGEST), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
