"""Lines over a logarithmic axis: ranges, ticks, gaps, and the same places on page and in print."""

import math
import re
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from figures.made_up import COVERAGE
from retinoscope.core.result import Result, answer, axes
from retinoscope.figures.compare import side_by_side
from retinoscope.figures.describe import figure
from retinoscope.plots.draw import draw
from retinoscope.report.svg import svg


@answer
class DecayResult(Result):
    """``decay[u]`` after unit u, over several orders of magnitude."""

    probe: ClassVar[str] = "decay"
    decay: np.ndarray = axes("unit", unit="ratio", error="error", title="Decay", log=True)
    error: np.ndarray = axes("unit", unit="standard error", figure=False)
    curves: np.ndarray = axes("unit", "step", unit="ratio", title="Curves", log=True)


RESULT = DecayResult(
    coverage=COVERAGE, decay=np.array([1e3, 10.0, 0.0, 0.1, -1.0]),
    error=np.array([0.0, 0.0, 0.0, 0.2, 0.0]), curves=np.logspace(0, -6, 35).reshape(5, 7),
)  # fmt: skip


def test_equal_ratios_are_equal_distances():
    chart = figure(RESULT).chart
    low, high = chart.y_limits
    places = chart.y_scale.share(np.array([0.1, 10.0, 1e3]))
    assert np.diff(places)[0] == pytest.approx(np.diff(places)[1])
    # From 0.05 (an error that reaches 0 is cut at half the value) to 1000, and 6 % of it around.
    room = 0.06 * (3 - math.log10(0.05))
    assert (math.log10(low), math.log10(high)) == pytest.approx((math.log10(0.05) - room, 3 + room))
    assert chart.y_ticks == [0.1, 1.0, 10.0, 100.0, 1000.0]


def test_values_without_a_logarithm_are_gaps_but_stay_in_the_table():
    found = figure(RESULT)
    assert np.isnan(found.chart.lines[0].column("y")).tolist() == [False, False, True, False, True]
    assert [row[2] for row in found.rows] == ["1000", "10", "0", "0.1", "−1"]
    assert str(svg(found.chart)).count('class="point"') == 3


@pytest.mark.parametrize("field", ["decay", "curves"])
def test_page_and_matplotlib_put_points_at_the_same_height(field):
    chart = figure(RESULT, field).chart
    drawn, ax = str(svg(chart)), draw(chart)
    assert ax.get_yscale() == "log"
    heights = [float(y) for y in re.findall(r'<circle cx="[^"]+" cy="([^"]+)"', drawn)]
    values = [(0.0, y) for line in chart.lines for y in line.column("y") if np.isfinite(y)]
    shares = ax.transAxes.inverted().transform(ax.transData.transform(values))[:, 1]
    np.testing.assert_allclose(heights, 240 + shares * (12 - 240), atol=0.02)


def test_charts_side_by_side_share_the_axis_if_their_logarithms_fit():
    small = replace(RESULT, decay=RESULT.decay / 100)
    charts, note = side_by_side([figure(one).chart for one in (RESULT, small)])
    assert charts[0].y_range == charts[1].y_range
    assert note == ""
    flat = replace(RESULT, decay=np.array([1.0, 1.1, 1.0, 1.1, 1.0]), error=np.zeros(5))
    charts, note = side_by_side([figure(one).chart for one in (RESULT, flat)])
    assert charts[0].y_range is None
    assert "own y axis" in note


def test_nothing_above_0_still_gives_an_axis():
    chart = figure(replace(RESULT, decay=np.zeros(5))).chart
    assert chart.y_limits == pytest.approx((10**-0.56, 10**0.56))
    assert 'class="point"' not in str(svg(chart))
