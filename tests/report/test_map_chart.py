"""Iso-lines, colours and surfaces of maps."""

import json
import re
from html import unescape

import numpy as np
import pytest

from retinoscope.core.wording import axis_number, shortened
from retinoscope.figures.colours import shade
from retinoscope.figures.figure import Bars, Map, Point
from retinoscope.figures.scale import Scale, contours, ticks
from retinoscope.report.svg import svg
from retinoscope.report.svg.surface import surface


def bowl(side=41):
    x = np.linspace(-1, 1, side)
    return x, x[None, :] ** 2 + x[:, None] ** 2


def chart(values, x=None, **options):
    x = np.linspace(-1, 1, values.shape[1]) if x is None else x
    y = np.linspace(-2, 2, values.shape[0])
    hints = [[f"cell {i} {j}" for j in range(values.shape[1])] for i in range(values.shape[0])]
    return Map(x, y, values, hints, ("to the right", "up", "height"), "a map", **options)


def pieces_of(values, level):
    """The straight pieces of all lines, as pairs of points."""
    lines = contours(values, level)
    return np.concatenate([np.stack([line[:-1], line[1:]], axis=1) for line in lines])


def test_the_line_of_a_bowl_is_a_circle():
    x, values = bowl()
    pieces = pieces_of(values, 0.47) * (x[1] - x[0]) - 1
    radius = np.hypot(pieces[..., 0], pieces[..., 1])
    # Straight between neighbours, x² is wrong by at most h²/4, and the radius by half of that / r.
    np.testing.assert_allclose(radius, 0.47**0.5, atol=(x[1] - x[0]) ** 2 / 4 / 1.3)
    length = np.hypot(*(pieces[:, 0] - pieces[:, 1]).T).sum()
    assert length == pytest.approx(2 * np.pi * 0.47**0.5, rel=2e-3)
    ends = np.round(pieces.reshape(-1, 2), 9)
    assert (np.unique(ends, axis=0, return_counts=True)[1] == 2).all()  # closed


def test_no_line_passes_a_hole():
    values = np.random.default_rng(0).normal(size=(9, 12))
    values[4, 5] = np.nan
    pieces = pieces_of(values, 0.0)
    middles = pieces.mean(1)
    assert len(pieces) > 20
    assert not (np.abs(middles - [5, 4]) < 1).all(1).any()


def test_lines_do_not_depend_on_scale_or_orientation():
    values = np.random.default_rng(1).normal(size=(7, 6))
    pieces = pieces_of(values, 0.3).tolist()
    assert np.allclose(pieces_of(10 * values + 4, 7.0), pieces)
    turned = {frozenset((b, a) for a, b in piece) for piece in pieces_of(values.T, 0.3).tolist()}
    close = [{tuple(np.round(p, 9)) for p in piece} for piece in turned]
    for piece in pieces:
        assert {tuple(np.round(p, 9)) for p in piece} in close
    assert len(close) == len(pieces)


def test_a_bowl_is_linear_and_whole():
    assert Scale.of(bowl()[1]) == Scale(0.0, 2.0)


def test_what_explodes_at_the_corners_is_clipped_and_said():
    values = bowl()[1].copy()
    values[0, 0], values[-1, -1] = 1e9, np.inf
    scale = Scale.of(values)
    assert scale.clipped
    assert 2.0 < scale.high < 4.0
    assert not scale.log
    drawn = svg(chart(values))
    assert f"above {scale.high:.3g}: clipped" in drawn
    assert drawn.count(f'fill="{shade(1.0)}"') >= 1
    assert "clipped" not in svg(chart(bowl()[1]))


def test_what_explodes_everywhere_is_logarithmic():
    values = 0.3 + np.exp(8 * np.sqrt(bowl()[1]))
    scale = Scale.of(values)
    assert scale.log
    assert not scale.clipped
    np.testing.assert_allclose(scale.share(np.array([scale.low, scale.high])), [0, 1], atol=1e-12)
    middle = np.sqrt(scale.low * scale.high)
    assert scale.share(np.array(middle)) == pytest.approx(0.5)
    assert scale.levels() == [10.0, 100.0, 1e3, 1e4]
    assert "height, logarithmic" in svg(chart(values))


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-30, 1e300, np.nan, np.inf])
def test_maps_of_one_value_can_be_drawn(value):
    values = np.full((3, 4), value)
    drawn = str(svg(chart(values)))
    assert "nan" not in drawn
    assert "inf" not in drawn.replace('fill="', "")
    assert drawn.count('class="point"') == 12
    assert bool(surface(chart(values))) == np.isfinite(value)


def test_every_cell_says_what_it_is_and_holes_are_hatched():
    values = np.arange(12.0).reshape(3, 4)
    values[1, 2] = np.nan
    drawn = str(svg(chart(values)))
    assert re.findall(r'data-label="(cell \d \d)"', drawn) == [
        f"cell {i} {j}" for i in range(3) for j in range(4)
    ]
    assert drawn.count(">not finite</text>") == 1
    assert drawn.count('height="101.33" fill="#d9dce1"') == 1
    assert ">not finite</text>" not in svg(chart(np.nan_to_num(values)))


def test_places_lie_where_the_axes_say():
    """Cells end half way between places that are not evenly spaced; y points up."""
    drawn = str(svg(chart(np.arange(6.0).reshape(2, 3), x=np.array([0.0, 1.0, 3.0]))))
    box = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
    boxes = re.findall(box, drawn)
    lefts, tops, widths, heights = np.array(boxes[:6], dtype=float).T
    np.testing.assert_allclose(
        widths[:3] / widths[:3].sum(), [1 / 4.5, 1.5 / 4.5, 2 / 4.5], atol=1e-3
    )
    assert (tops[:3] > tops[3:]).all()
    assert (heights == heights[0]).all()
    assert lefts.tolist() == sorted(lefts[:3]) * 2


def test_the_centre_is_marked_where_it_is_in_sight():
    assert 'class="centre"' in svg(chart(bowl(5)[1]))
    assert 'class="centre"' not in svg(chart(bowl(5)[1], x=np.arange(2.0, 7.0)))


def test_a_surface_has_the_heights_of_its_map():
    values = np.array([[0.0, 1.0, np.nan], [2.0, 4.0, np.inf]])
    x, y = np.array([-3.0, 0.0, 3.0]), np.array([0.0, 1.0])
    scale = Scale(0.0, 2.0, clipped=True)
    drawn = str(surface(Map(x, y, values, [], ('<"x">', "y", "z"), scale=scale)))
    data = json.loads(unescape(drawn.split('data-surface="')[1].split('"')[0]))
    assert data["z"] == [[0.0, 0.5, None], [1.0, 1.0, None]]
    assert (data["x"], data["y"]) == ([-1.0, 0.0, 1.0], [-1.0, 1.0])
    assert data["labels"] == ['<"x">', "y", "z, clipped above 2"]
    assert data["ends"] == [["−3", "3"], ["0", "1"]]
    assert '<"x">' not in drawn
    assert " hidden=" in drawn  # until a script draws it
    assert "arrow keys" in drawn.split('aria-label="')[1].split('"')[0]


def test_bars_have_their_lengths_names_and_whiskers():
    points = [Point(0, 2.0, 0.25, "a · 2"), Point(1, -1.0, label="b · −1"), Point(2, np.nan)]
    bars = Bars(points, ("a", "b", "c" * 60), "sharpness")
    drawn = str(svg(bars))
    widths = [float(w) for w in re.findall(r'height="10" width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.02)
    (whisker,) = re.findall(r'<line x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"[^>]*whisker', drawn)
    assert float(whisker[1]) - float(whisker[0]) == pytest.approx(widths[1], abs=0.02)
    assert shortened("c" * 60, 29) in drawn
    assert "c" * 40 not in drawn
    assert bars.range()[1] > 2.5
    assert Bars(points[:1], ("a",), "s").range()[0] == 0.0
    assert (bars.errors, Bars(points[1:], ("b", "c"), "s").errors) == ("Whiskers", "")


def test_numbers_on_axes_stay_short():
    assert ticks(-2e-15, 2.1e-15) == [-2e-15, -1e-15, 0.0, 1e-15, 2e-15]
    assert [axis_number(v) for v in (-1.5, 1e5, 2.5e7, 1e-7, 1e12)] == [
        "−1.5", "1e5", "2.5e7", "1e−7", "1e12",
    ]  # fmt: skip
    assert shortened("stages.0.blocks.11.attn", 12) == "stages…1.attn"
