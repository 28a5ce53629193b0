"""Images of which one choice is shown at a time, over other images."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from figures.made_up import COVERAGE
from retinoscope.core.result import Result, answer, axes
from retinoscope.figures.describe import figure
from retinoscope.figures.figure import Images
from retinoscope.plots.draw import draw
from retinoscope.report.svg import svg


@answer
class LooksResult(Result):
    """``looks[h, m]``: map m of head h."""

    probe: ClassVar[str] = "looks"

    names: tuple[str, ...]
    captions: tuple[str, ...]
    looks: np.ndarray = axes(
        "head", "map", "row", "column", unit="weight", draw="images", rows="captions",
        choices="names", over="photos", limits=(0.0, 1.0), title="Where heads look",
    )  # fmt: skip
    photos: np.ndarray = axes("photo", "row", "column", "colour", draw="images", figure=False)


RANDOM = np.random.default_rng(0)
RESULT = LooksResult(
    coverage=COVERAGE, names=("mean", "head 0", "head 1"),
    captions=("a · one", "a · two", "b · one", "b · two"), looks=RANDOM.random((3, 4, 2, 3)),
    photos=RANDOM.random((2, 8, 12, 3)),
)  # fmt: skip


def test_each_photo_lies_below_its_own_maps():
    chart = figure(RESULT, "looks").chart
    assert isinstance(chart, Images)
    assert not chart.plain
    assert (chart.columns, chart.rows, chart.tall) == (4, 1, 2 / 3)
    expected = np.rint(255 * RESULT.photos).astype(np.uint8)
    for index, photo in enumerate((0, 0, 1, 1)):
        np.testing.assert_array_equal(chart.below(index), expected[photo])
    assert figure(replace(RESULT, photos=np.empty((0, 8, 12, 3)))).chart.below(0) is None


def test_every_choice_has_its_own_pixels_and_rows():
    found = figure(RESULT, "looks")
    assert found.header == ("head", "map", "lowest", "mean", "highest")
    assert [row[:2] for row in found.rows[3:6]] == [
        ("mean", "b · two"), ("head 0", "a · one"), ("head 0", "a · two"),
    ]  # fmt: skip
    pixels = [found.chart.pixels(1, choice) for choice in range(3)]
    assert not np.array_equal(pixels[0], pixels[1])
    assert not np.array_equal(pixels[1], pixels[2])


def test_heads_that_are_not_there_are_left_out():
    looks = RESULT.looks.copy()
    looks[2, 1] = np.nan
    found = figure(replace(RESULT, looks=looks), "looks")
    assert len(found.rows) == 11
    assert not found.chart.has(1, 2)
    drawn = str(svg(found.chart))
    assert drawn.count('class="point"') == 11
    assert "nan" not in drawn


def test_the_svg_shows_the_first_choice_and_stores_each_photo_once():
    drawn = str(svg(figure(RESULT, "looks").chart))
    assert drawn.count('class="choice"') == 3
    assert drawn.count("display:none") == 2
    assert drawn.count("<defs>") == 2
    assert drawn.count("<use ") == 4


def test_matplotlib_draws_the_first_choice_over_the_photos():
    ax = draw(figure(RESULT, "looks").chart)
    assert len(ax.images) == 8
    assert {image.get_alpha() for image in ax.images[1::2]} == {0.65}


@pytest.mark.parametrize(
    "broken", [{"looks": np.zeros((4, 2, 3))}, {"looks": np.zeros((3, 0, 2, 3))}]
)
def test_other_shapes_have_no_figure(broken):
    from retinoscope.core.errors import WrongInput

    with pytest.raises(WrongInput, match="no figure of 'looks'"):
        figure(replace(RESULT, **broken), "looks")
