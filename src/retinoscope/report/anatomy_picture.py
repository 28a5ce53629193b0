"""The anatomy of a network as SVG: a box per unit, as high as its map has rows (in octaves)."""

from __future__ import annotations

import math

from markupsafe import Markup

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.unit import Unit
from retinoscope.figures.colours import BANDS
from retinoscope.report.svg.markup import tag

_BOX, _GAP, _OCTAVE, _HEIGHT = 14.0, 3.0, 9.0, 104.0


def anatomy_picture(anatomy: Anatomy) -> Markup:
    """From stem to head; pointing at a box tells what it is."""
    boxes, left = [], 2.0
    stage = None
    for unit in anatomy:
        if unit.stage != stage and boxes:
            left += 2 * _GAP
        stage = unit.stage
        boxes.append(_box(unit, left))
        left += _BOX + _GAP
    return tag(
        "svg", *boxes,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {left + 2:g} {_HEIGHT:g}",
        width=left + 2, height=_HEIGHT, class_="anatomy", role="img",
        aria_label=f"The units of {anatomy.model}",
    )  # fmt: skip


def _box(unit: Unit, left: float) -> Markup:
    rows = unit.grid.height if unit.grid else 1
    height = 12.0 + _OCTAVE * math.log2(max(1, rows))
    height = min(height, _HEIGHT - 4)
    kind = "subsampling" if unit.subsamples and unit.stage is not None else str(unit.kind)
    where = f"stage {unit.stage} · " if unit.stage is not None else ""
    label = (
        f"{unit.name} · {unit.kind} · {where}{unit.grid or 'no grid'} · {unit.channels} channels · "
        f"{unit.parameters:,} parameters"
    )
    return tag(
        "rect", tag("title", label),
        x=left, y=(_HEIGHT - height) / 2, width=_BOX, height=height, rx="1.5",
        fill=BANDS.get(kind, "#fff"), stroke="#555", stroke_width="0.8",
        class_="point", data_label=label,
    )  # fmt: skip
