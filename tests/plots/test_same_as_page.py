"""The page and matplotlib draw the same description."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from PIL import Image

from figures.made_up import made_up
from figures.similarity import SimilarityResult
from report import test_figures_geometry as by_hand
from retinoscope.figures.describe import figures
from retinoscope.figures.figure import Bars, Images, Lines, Map, Matrix
from retinoscope.plots.draw import draw
from retinoscope.probes import get_probe, list_probes
from retinoscope.report.svg import svg
from retinoscope.train.curves import LearningCurves

CLASSES = [*(get_probe(name).result for name in list_probes()), LearningCurves, SimilarityResult]
RESULTS = [
    *(made_up(cls) for cls in CLASSES),
    by_hand.hessian(),
    by_hand.landscape(),
    by_hand.trajectory(),
]
FIGURES = [(result.probe, figure) for result in RESULTS for figure in figures(result)]


def attributes(drawn, element, *names, within=""):
    """The attributes of all elements of a kind, as a row each."""
    found = re.findall(rf"<{element} [^>]*{within}[^>]*>", drawn)
    return [[re.search(rf' {name}="([^"]*)"', one)[1] for name in names] for one in found]


def same_lines(chart, drawn, ax):
    dots = attributes(drawn, "circle", "cx", "cy", "fill", within='class="point"')
    finite = [
        (x, y)
        for line in ax.lines[len(chart.marks) : len(chart.marks) + len(chart.lines)]
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        if np.isfinite(x) and np.isfinite(y)
    ]
    assert len(dots) == len(finite)
    # What matplotlib shows as a share of its axes lies there on the page, between the same ends.
    shares = ax.transAxes.inverted().transform(ax.transData.transform(finite))
    places = np.array([dot[:2] for dot in dots], dtype=float)
    axis = re.search(r'x1="([\d.]+)" y1="240" x2="([\d.]+)" y2="(240)"', drawn)
    left, right, base = map(float, axis.groups())
    np.testing.assert_allclose(places[:, 0], left + shares[:, 0] * (right - left), atol=0.02)
    top = 28.0 if any(line.shading for line in chart.lines) else 12.0
    np.testing.assert_allclose(places[:, 1], base + shares[:, 1] * (top - base), atol=0.02)
    if not chart.lines[0].shading:
        inks = {line.get_color() for line in ax.lines[len(chart.marks) :][: len(chart.lines)]}
        assert {dot[2] for dot in dots} <= inks
    else:
        shown = ax.collections[0].to_rgba(ax.collections[0].get_array())
        close(shown, [dot[2] for dot in dots])
    bands = attributes(drawn, "rect", "fill", within='class="band"')
    assert [band[0] for band in bands] == [to_hex(p.get_facecolor()) for p in ax.patches]


def same_bars(chart, drawn, ax):
    lengths = [float(w) for (w,) in attributes(drawn, "rect", "width", within='class="point"')]
    theirs = [abs(p.get_width()) for p in ax.patches if np.isfinite(p.get_width())]
    assert len(lengths) == len(theirs)
    low, high = ax.get_xlim()
    assert (low, high) == pytest.approx(chart.range())
    scale = lengths[0] / theirs[0]
    np.testing.assert_allclose(lengths, np.maximum(1, scale * np.array(theirs)), atol=0.1)
    assert {to_hex(p.get_facecolor()) for p in ax.patches} == {
        fill for (fill,) in attributes(drawn, "rect", "fill", within='class="point"')
    }


def same_cells(chart, drawn, ax):
    mesh = ax.collections[0]
    values = mesh.get_array()
    fills = [fill for (fill,) in attributes(drawn, "rect", "fill", within='class="point"')]
    assert len(fills) == values.size
    seen = ~np.ma.getmaskarray(values).ravel()
    if isinstance(chart, Matrix):  # drawn from the last row to the first
        fills = np.array(fills).reshape(values.shape)[::-1].ravel().tolist()
    close(mesh.to_rgba(values).reshape(-1, 4)[seen], np.array(fills)[seen])
    assert {fill for fill, drawn in zip(fills, seen, strict=True) if not drawn} <= {"#d9dce1"}
    iso = [c for c in ax.collections if isinstance(c, LineCollection)]
    paths = attributes(drawn, "path", "d", "stroke", within='class="iso"')
    assert [d.count("M") for d, _ in paths] == [len(c.get_segments()) for c in iso]
    assert [ink for _, ink in paths] == [to_hex(c.get_color()[0]) for c in iso]
    if isinstance(chart, Matrix):
        borders = attributes(drawn, "line", "x1", within='class="border"')
        assert len(borders) == len(ax.lines) == len(chart.row_borders) + len(chart.column_borders)
        assert [t.get_text() for t in ax.get_yticklabels()] == list(chart.rows)
        assert [name for name in chart.columns if f">{name}</text>" in drawn] == list(chart.columns)


def same_images(chart, drawn, ax):
    below, _, above = drawn.rpartition("</defs>")
    covered, shown = (len(attributes(part, "image", "href")) for part in (below, above))
    count = len(chart.captions)
    photos = [chart.below(index) for index in range(count)]
    assert covered == len({photo.tobytes() for photo in photos if photo is not None})
    assert shown == count * max(1, len(chart.choices))
    assert len(ax.images) == count * (2 if covered else 1)
    for (address,), own in zip(
        attributes(above, "image", "href")[:count], ax.images[bool(covered) :: 1 + bool(covered)],
        strict=True,
    ):  # fmt: skip
        content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
        pixels = np.asarray(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(pixels, own.get_array())
    assert [text.get_text() for text in ax.texts] == list(chart.captions)


def close(rgba, fills):
    """The same colours, or neighbours in the table: rounding decides between two of them."""
    theirs = np.array([to_rgb(fill) for fill in fills])
    np.testing.assert_allclose(np.asarray(rgba)[:, :3], theirs, atol=7 / 255)


@pytest.mark.parametrize(("probe", "figure"), FIGURES)
def test_the_page_and_matplotlib_draw_the_same(probe, figure):
    drawn, ax = str(svg(figure.chart)), draw(figure.chart)
    compare = {
        Lines: same_lines, Bars: same_bars, Map: same_cells, Matrix: same_cells, Images: same_images
    }  # fmt: skip
    compare[type(figure.chart)](figure.chart, drawn, ax)
    assert "nan" not in drawn
    ax.figure.canvas.draw()


def test_every_probe_has_a_figure():
    assert {probe for probe, _ in FIGURES} >= set(list_probes())
    assert {type(figure.chart) for _, figure in FIGURES} == {Lines, Bars, Map, Matrix, Images}


def test_names_are_only_text():
    hostile = "<script>alert(1)</script>"
    result = made_up(SimilarityResult)
    named = replace(
        result,
        heads=(hostile,) * len(result.heads),
        other_units=(hostile,) * len(result.other_units),
    )
    for figure in figures(named):
        drawn = str(svg(figure.chart))
        assert "<script>" not in drawn
        assert ("&lt;script&gt;" in drawn) == (figure.field in ("cka", "weights"))
