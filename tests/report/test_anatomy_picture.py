"""Boxes are as high as the page says."""

import re

import pytest

from retinoscope import Anatomy, Grid, Kind, Unit
from retinoscope.report.anatomy_picture import anatomy_picture
from retinoscope.report.build import _asset


def picture(*rows):
    units = tuple(
        Unit(f"u{i}", Kind.CONV, 1, i, False, False, n and Grid("NCHW", n, 3), 8, 0, 0)
        for i, n in enumerate(rows)
    )
    return str(anatomy_picture(Anatomy("toy", units)))


def boxes(drawn):
    found = re.findall(r'<rect x="[^"]+" y="([^"]+)" width="[^"]+" height="([^"]+)"', drawn)
    return [(float(y), float(height)) for y, height in found]


def test_twice_as_many_rows_are_one_step_higher_whatever_the_size():
    rows = (1, 2, 4, 7, 14, 224, 448, 2048, 4096)
    heights = dict(zip(rows, (height for _, height in boxes(picture(*rows))), strict=True))
    step = heights[2] - heights[1]
    assert step > 0
    for few, many in ((2, 4), (7, 14), (224, 448), (2048, 4096)):
        assert heights[many] - heights[few] == pytest.approx(step, abs=0.02)  # of two digits


def test_all_pictures_have_one_scale_and_every_box_is_in_sight():
    for rows in ((8, 4), (4096, 8)):
        drawn = picture(*rows)
        tall = float(re.search(r'viewBox="0 0 \S+ (\S+)"', drawn)[1])
        assert all(0 <= y and y + height <= tall for y, height in boxes(drawn))
    alone, beside = boxes(picture(8)), boxes(picture(4096, 8))
    assert alone[0][1] == beside[1][1]


def test_a_unit_without_maps_is_as_low_as_one_row():
    (_, none), (_, one) = boxes(picture(None, 1))
    assert none == one


def test_the_page_claims_no_more():
    page = _asset("page.html")
    assert "twice as many rows make a box one step higher" in page
    assert "as high as its maps have rows" not in page
