"""Figures as SVG for the report: one file per kind of chart; the page's script adds interaction."""

from __future__ import annotations

from markupsafe import Markup

from retinoscope.figures.figure import Bars, Chart, Images, Lines, Map, Matrix
from retinoscope.report.svg.bars import bars_svg
from retinoscope.report.svg.cells import map_svg, matrix_svg
from retinoscope.report.svg.images import images_svg
from retinoscope.report.svg.lines import lines_svg


def svg(chart: Chart) -> Markup:
    """The chart as one element."""
    match chart:
        case Lines():
            return lines_svg(chart)
        case Bars():
            return bars_svg(chart)
        case Map():
            return map_svg(chart)
        case Matrix():
            return matrix_svg(chart)
        case Images():
            return images_svg(chart)
