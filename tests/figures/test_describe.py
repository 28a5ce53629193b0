from dataclasses import replace

import numpy as np
import pytest

from figures.made_up import COVERAGE, made_up
from figures.similarity import SimilarityResult
from retinoscope.core.errors import WrongInput
from retinoscope.figures.compare import overlaid, side_by_side
from retinoscope.figures.describe import figure, figures
from retinoscope.figures.figure import Images, Matrix, scale_of
from retinoscope.figures.scale import Scale
from retinoscope.probes.trajectory import TrajectoryResult
from retinoscope.probes.variance import VarianceResult

RESULT = made_up(SimilarityResult)


def test_a_matrix_has_names_groups_limits_and_numbers():
    found = figure(RESULT, "cka")
    chart = found.chart
    assert isinstance(chart, Matrix)
    assert tuple(chart.rows) == COVERAGE.units
    assert tuple(chart.columns) == RESULT.other_units
    assert chart.row_borders == (1, 3)  # behind the stem, and between the stages
    assert chart.column_borders == tuple(range(1, len(chart.columns)))
    assert chart.labels == ("unit of the other", "unit", "CKA")
    assert (scale_of(chart).low, scale_of(chart).high) == (0.0, 1.0)
    assert found.header == ("unit", "unit of the other", "CKA")
    assert len(found.rows) == RESULT.cka.size
    assert found.rows[0][:2] == (COVERAGE.units[0], RESULT.other_units[0])
    assert chart.hints[1][2] == " · ".join(found.rows[len(chart.columns) + 2])


def test_colours_to_either_side_of_zero_are_as_wide():
    chart = figure(RESULT, "difference").chart
    scale = scale_of(chart)
    assert scale.low == -scale.high
    assert scale.table == "diverging"
    assert scale.share(np.zeros(1)) == 0.5
    assert chart.column_borders == chart.row_borders  # both are units
    exploding = Scale.of(np.array([0.1, -0.2, 0.1, 1e6]), diverging=True)
    assert exploding.clipped
    assert exploding.high == pytest.approx(5 * 0.15)  # of the median magnitude
    assert Scale.of(np.zeros(3), diverging=True) == Scale(-1.0, 1.0, diverging=True)


def test_images_are_coloured_by_value_or_as_they_are():
    found = figure(RESULT, "weights")
    chart = found.chart
    assert isinstance(chart, Images)
    assert tuple(chart.captions) == RESULT.heads
    assert chart.pixels(0).shape == (*RESULT.weights.shape[1:], 3)
    assert found.header == ("head", "lowest", "mean", "highest")
    assert len(found.rows) == len(RESULT.heads)
    photos = figure(RESULT, "photos").chart
    assert photos.plain
    assert photos.captions == [str(i) for i in range(len(RESULT.photos))]
    np.testing.assert_array_equal(
        photos.pixels(1), np.rint(255 * np.clip(RESULT.photos[1], 0, 1)).astype(np.uint8)
    )
    holed = replace(RESULT, weights=np.where(RESULT.weights > 0.5, np.nan, RESULT.weights))
    grey = figure(holed, "weights").chart.pixels(0)[RESULT.weights[0] > 0.5]
    assert (grey == [0xD9, 0xDC, 0xE1]).all()


def test_matrices_and_images_side_by_side_share_their_colours():
    double = replace(RESULT, weights=2 * RESULT.weights, difference=2 * RESULT.difference)
    for field in ("weights", "difference", "cka", "photos"):
        charts, note = side_by_side([figure(r, field).chart for r in (RESULT, double)])
        assert note == ""
        assert charts[0].scale == charts[1].scale
        assert (charts[0].scale is None) == (field == "photos")  # these have their own colours


def test_paths_side_by_side_share_their_colours():
    first, second = made_up(TrajectoryResult), made_up(TrajectoryResult, seed=1)
    charts, note = side_by_side([figure(r, "second").chart for r in (first, second)])
    shadings = [chart.lines[0].shading for chart in charts]
    np.testing.assert_array_equal(shadings[1].values, second.nll)
    assert shadings[0].scale == shadings[1].scale
    assert shadings[0].scale.high == max(first.nll.max(), second.nll.max())
    assert note == ""


def test_what_has_no_figure_by_itself_can_be_asked_for():
    result = made_up(VarianceResult)
    assert [f.field for f in figures(result)] == ["variance", "step"]
    assert figure(result, "variance_error").field == "variance_error"
    with pytest.raises(WrongInput, match=r"no figure of 'variants'. Did you mean 'variance'"):
        figure(result, "variants")


def test_shapes_that_cannot_be_drawn_have_no_figure():
    flat = replace(RESULT, weights=RESULT.weights[0], cka=np.zeros((0, 5)), difference=np.zeros(5))
    assert [f.field for f in figures(flat)] == ["photos"]


def test_backgrounds_are_those_of_kinds_that_have_one():
    bands = figure(made_up(VarianceResult)).chart.bands
    assert [band.kind for band in bands] == ["attention", "subsampling", "attention"]
    assert (bands[0].start, bands[0].stop) == (0.125, 0.375)


def test_lines_one_over_the_other_are_told_apart():
    result = made_up(VarianceResult)
    chart = overlaid([figure(result, f).chart for f in ("variance", "step")], ("before", "after"))
    assert [line.name for line in chart.lines] == ["before", "after"]
    assert len({line.colour.web for line in chart.lines}) == 2
    assert chart.legend
