"""Images as SVG: each embedded as a small PNG file."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from PIL import Image

from retinoscope.core.wording import shortened
from retinoscope.figures.colours import OPACITY
from retinoscope.figures.figure import Images, scale_of
from retinoscope.report.svg.markup import tag
from retinoscope.report.svg.pen import WIDTH, clipping, drawing, legend_above, text

_GAP, _CAPTION = 6.0, 16.0
_LARGEST = 128
"""Maximum pixels per side; larger images are reduced, because the page would not show more."""


def images_svg(chart: Images) -> Markup:
    """Images in rows with captions below, and the colour scale above unless they are RGB."""
    side = min(150.0, (WIDTH - _GAP) / chart.columns - _GAP)
    height = side * chart.tall
    top = 0.0 if chart.plain else 22.0
    parts = []
    if not chart.plain:
        scale = scale_of(chart)
        cut = clipping(scale, scale.share(chart.values))
        parts += legend_above(scale, f"{chart.label}; {cut}" if cut else chart.label, 14.0)
    boxes = []
    for index, caption in enumerate(chart.captions):
        row, column = divmod(index, chart.columns)
        x, y = _GAP + column * (side + _GAP), top + _GAP + row * (height + _CAPTION + _GAP)
        boxes.append({"x": x, "y": y, "width": side, "height": height})
        parts.append(text(shortened(caption, int(side / 5.6)), x + side / 2, y + height + 12))
    parts += _below(chart, boxes)
    for choice, name in enumerate(chart.choices or ("",)):
        shown = [
            _image(chart, index, choice, f"{caption} · {name}" if name else caption, box)
            for index, (caption, box) in enumerate(zip(chart.captions, boxes, strict=True))
            if chart.has(index, choice)
        ]
        hidden = "display:none" if choice else None
        group = tag("g", *shown, class_="choice", data_choice=choice, style=hidden)
        parts += [group] if chart.choices else shown
    whole = top + _GAP + chart.rows * (height + _CAPTION + _GAP)
    return drawing(parts, chart.name, whole, "chart images")


def _image(chart: Images, index: int, choice: int, label: str, box: dict[str, float]) -> Markup:
    style = "image-rendering:pixelated"
    if chart.below(index) is not None:
        style += f";opacity:{OPACITY}"
    return tag(
        "image", tag("title", label), href=_address(chart.pixels(index, choice)), **box,
        preserveAspectRatio="none", class_="point", style=style, data_label=label,
    )  # fmt: skip


def _below(chart: Images, boxes: Sequence[dict[str, float]]) -> list[Markup]:
    """The images below others, each stored once; its hash is its identifier on the page."""
    parts, known = [], set()
    for index, box in enumerate(boxes):
        if (pixels := chart.below(index)) is None:
            continue
        size = {"width": box["width"], "height": box["height"]}
        content = pixels.tobytes() + repr(size).encode()
        name = f"below-{hashlib.sha256(content).hexdigest()[:16]}"
        if name not in known:
            known.add(name)
            stretched = tag("image", href=_address(pixels), preserveAspectRatio="none", **size)
            parts.append(tag("defs", tag("g", stretched, id=name)))
        parts.append(tag("use", href=f"#{name}", x=box["x"], y=box["y"]))
    return parts


def _address(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((_LARGEST, _LARGEST), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
