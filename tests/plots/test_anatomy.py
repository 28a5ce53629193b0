import math
import re

import pytest
from matplotlib.figure import Figure

from retinoscope import Anatomy, Grid, Kind, Unit
from retinoscope.core.errors import WrongInput
from retinoscope.plots.anatomy import draw, plot


def unit(name, kind, stage, rows, subsamples=False, inner=()):
    grid = Grid("NCHW", rows, rows) if rows else None
    return Unit(name, kind, stage, 0, False, subsamples, grid, 8, 0, 0, inner=inner)


ANATOMY = Anatomy(
    "toy <b>",
    (
        unit("stem", Kind.STEM, None, 8, True),
        unit("a", Kind.CONV, 1, 8),
        unit("b", Kind.ATTENTION, 1, 8, inner=(unit("c", Kind.MLP, 1, 8),)),
        unit("d", Kind.CONV, 2, 4, True),
        unit("head", Kind.HEAD, None, 0),
    ),
)


def boxes(ax):
    return [(patch.get_facecolor(), round(patch.get_height(), 3)) for patch in ax.patches]


def test_colours_are_kinds_and_heights_are_resolutions():
    found = boxes(plot(ANATOMY))
    white, grey, blue = (
        (1, 1, 1, 1),
        (0x9E / 255,) * 3 + (1,),
        (0x8F / 255, 0xB8 / 255, 0xDE / 255, 1),
    )
    assert [height for _, height in found] == [4, 4, 4, 2.4, 3, 1]  # 1 + log2(rows); inner 60 %
    colours = [tuple(round(c, 3) for c in colour) for colour, _ in found]
    expected = [tuple(round(c, 3) for c in colour) for colour in (white, grey, white, blue)]
    assert colours[1:5] == expected


def test_labels_tell_stages_and_weights():
    texts = [text.get_text() for text in plot(ANATOMY).texts]
    assert texts == ["stem", "8×8", "8 ch", "4×4", "8 ch", "head"]
    assert plot(ANATOMY).get_title("left") == "toy <b>  (unknown, 224×224)"


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_files(suffix, tmp_path):
    path = tmp_path / f"deep/a{suffix}"
    draw([ANATOMY, ANATOMY], path)
    assert path.stat().st_size > 1000


def test_the_same_anatomy_gives_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw([ANATOMY], tmp_path / name)
    text = (tmp_path / "a.svg").read_bytes()
    assert text == (tmp_path / "b.svg").read_bytes()
    assert not re.search(rb"20\d\d-\d\d-\d\d", text)


def test_a_hostile_name_is_only_text(tmp_path):
    draw([Anatomy("<script>alert(1)</script>", ANATOMY.units)], tmp_path / "a.svg")
    assert "<script>" not in (tmp_path / "a.svg").read_text()


def test_an_ending_that_is_no_picture(tmp_path):
    with pytest.raises(WrongInput, match=r"must end in \.svg, \.png, \.pdf; got"):
        draw([ANATOMY], tmp_path / "a.doc")


def test_a_map_of_any_size_is_as_high_as_claimed_and_in_sight():
    """Between the labels below and the upper end of the axes, also of maps beyond 200 rows."""
    for rows in (224, 4096):
        large = Anatomy("large", (unit("a", Kind.CONV, 1, rows), unit("b", Kind.CONV, 2, 1)))
        ax = plot(large)
        assert [height for _, height in boxes(ax)] == [round(1 + math.log2(rows), 3), 1]
        box = ax.patches[0].get_bbox()
        low, high = ax.get_ylim()
        assert -0.5 < box.y0 < box.y1 < high
        assert low < -0.5


def test_several_anatomies_have_one_scale():
    figure = Figure()
    axes = [figure.add_subplot(2, 1, place) for place in (1, 2)]
    for one, ax in zip((ANATOMY, Anatomy("b", (unit("a", Kind.CONV, 1, 512),))), axes, strict=True):
        plot(one, ax, tallest=10)
    assert axes[0].get_ylim() == axes[1].get_ylim()
