"""Figures of arrays whose values are shown as colours: maps, matrices and images."""

from __future__ import annotations

import math

import numpy as np

from retinoscope.core.wording import number
from retinoscope.figures.declared import Declared
from retinoscope.figures.figure import Figure, Images, Map, Matrix

_UNKNOWN = (math.nan,) * 3


def map_of(array: Declared) -> Figure:
    """Values over two axes, both in ascending order."""
    along, up = (np.asarray(array.other(key), dtype=float) for key in ("x", "y"))
    columns, rows = (np.argsort(p)[: int(np.isfinite(p).sum())] for p in (along, up))
    xs, ys = along[columns], up[rows]
    values = array.values[np.ix_(rows, columns)].astype(float)
    x_label, y_label = (array.unit_of(key) or array.about[key] for key in ("x", "y"))
    cells = [
        [(number(x), number(y), _written(v)) for x, v in zip(xs, row, strict=True)]
        for y, row in zip(ys, values, strict=True)
    ]
    hints = [[f"{x_label} {x} · {y_label} {y} · {v}" for x, y, v in row] for row in cells]
    labels = (x_label, y_label, array.unit)
    chart = Map(xs, ys, values, hints, labels, array.title, **array.colours)
    return Figure(array.name, array.title, chart, labels, tuple(c for row in cells for c in row))


def matrix(array: Declared) -> Figure:
    """One value for each pair of a row and a column."""
    rows, columns, values = array.named(0), array.named(-1), array.values.astype(float)
    cells = [
        [(row, column, _written(v)) for column, v in zip(columns, line, strict=True)]
        for row, line in zip(rows, values, strict=True)
    ]
    y_label, x_label = array.about["axes"]
    chart = Matrix(
        values, rows, columns, [[" · ".join(cell) for cell in row] for row in cells],
        (x_label, y_label, array.unit), array.title, array.borders(0), array.borders(-1),
        **array.colours,
    )  # fmt: skip
    header = (y_label, x_label, array.unit)
    return Figure(array.name, array.title, chart, header, tuple(c for row in cells for c in row))


def images(array: Declared) -> Figure:
    """Small images with captions; the table contains the range of each."""
    values, choices, under = array.values.astype(float), array.choices, array.other("over", None)
    *first, axis = array.about["axes"][: 1 + bool(choices)]
    captions = [str(name) for name in array.other("rows")] or [
        str(index) for index in range(values.shape[bool(choices)])
    ]
    rows = []
    for choice, variant in zip(choices or ("",), values if choices else [values], strict=True):
        for caption, one in zip(captions, variant, strict=True):
            finite = one[np.isfinite(one)]
            if finite.size or not choices:
                facts = (finite.min(), finite.mean(), finite.max()) if finite.size else _UNKNOWN
                rows.append((*[choice] * len(first), caption, *map(number, facts)))
    chart = Images(
        values, captions, array.unit, array.title, choices=choices, under=under, **array.colours
    )
    header = (*first, axis, "lowest", "mean", "highest")
    return Figure(array.name, array.title, chart, header, tuple(rows))


def _written(value: float) -> str:
    return number(value) if math.isfinite(value) else "not finite"
