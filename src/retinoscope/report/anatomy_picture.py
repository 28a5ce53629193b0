"""The anatomy of a network as SVG: one box per unit, one step higher per doubling of its rows."""

from __future__ import annotations

import math

from markupsafe import Markup

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.unit import Unit
from retinoscope.figures.colours import BANDS
from retinoscope.report.svg.markup import tag

_BOX, _GAP, _LOWEST, _OCTAVE, _HEIGHT = 14.0, 3.0, 12.0, 9.0, 104.0


def anatomy_picture(anatomy: Anatomy) -> Markup:
    """The units from stem to head; hovering over a box shows its description."""
    boxes, left = [], 2.0
    tall = max([_HEIGHT, *(_height(unit) + 4 for unit in anatomy)])
    stage = None
    for unit in anatomy:
        if unit.stage != stage and boxes:
            left += 2 * _GAP
        stage = unit.stage
        boxes.append(_box(unit, left, tall))
        left += _BOX + _GAP
    return tag(
        "svg", *boxes,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {left + 2:g} {tall:g}",
        width=left + 2, height=tall, class_="anatomy", role="img",
        aria_label=f"The units of {anatomy.model}",
    )  # fmt: skip


def _height(unit: Unit) -> float:
    """The height for the number of rows, the same in every picture; without maps, one row."""
    return _LOWEST + _OCTAVE * math.log2(unit.grid.height if unit.grid else 1)


def _box(unit: Unit, left: float, tall: float) -> Markup:
    height = _height(unit)
    kind = "subsampling" if unit.subsamples and unit.stage is not None else str(unit.kind)
    where = f"stage {unit.stage} · " if unit.stage is not None else ""
    label = (
        f"{unit.name} · {unit.kind} · {where}{unit.grid or 'no grid'} · {unit.channels} channels · "
        f"{unit.parameters:,} parameters"
    )
    return tag(
        "rect", tag("title", label),
        x=left, y=(tall - height) / 2, width=_BOX, height=height, rx="1.5",
        fill=BANDS.get(kind, "#fff"), stroke="#555", stroke_width="0.8",
        class_="point", data_label=label,
    )  # fmt: skip
