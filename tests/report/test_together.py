"""Curves of all models in one chart by choice, and one colour for each model."""

import re
from dataclasses import replace

import numpy as np
import pytest

from report.test_figures_geometry import hessian, landscape, subject, trajectory
from retinoscope.core.errors import WrongInput
from retinoscope.figures.colours import apart
from retinoscope.figures.compare import together
from retinoscope.figures.describe import figure
from retinoscope.figures.figure import Colour
from retinoscope.plots.declared import plot_together
from retinoscope.report.build import build_report, render
from retinoscope.report.collect import Collected, collect
from retinoscope.report.svg import svg

COLOURS = [Colour("categorical", place) for place in range(2)]


def results(measured, probe):
    return {
        one.name: next(m.result for m in one.measured if m.result.probe == probe)
        for one in collect([measured]).examined
    }


@pytest.mark.parametrize(
    ("probe", "field"), [("fourier", "log_amplitude"), ("fourier", "high"), ("variance", "step")]
)
def test_all_curves_of_all_models_are_there_each_in_its_models_colour(measured, probe, field):
    found = results(measured, probe)
    charts = [figure(result, field).chart for result in found.values()]
    chart = together(charts, list(found), COLOURS)
    assert len(chart.lines) == sum(len(one.lines) for one in charts)
    for name, own, colour in zip(found, charts, COLOURS, strict=True):
        lines = [line for line in chart.lines if line.colour == colour]
        for line, before in zip(lines, own.lines, strict=True):
            np.testing.assert_array_equal(line.column("y"), before.column("y"))
        assert [line.name for line in lines] == [name] + [""] * (len(lines) - 1)
        assert all(p.label.startswith(f"{name} · ") for line in lines for p in line.points)
    drawn = str(svg(chart))
    assert all(drawn.count(f">{name}</text>") == 1 for name in found)
    assert not chart.bands


def test_the_page_offers_both_and_has_one_key(measured, tmp_path):
    page = build_report([measured], tmp_path / "r.html").read_text()
    rows = page.split('<div class="row">')[1:]
    assert len(rows) == 5
    for row in rows:
        inputs = re.findall(r'<input type="radio"(?: class="joint")? name="([^"]+)"', row)
        assert len(inputs) == 2
        assert len(set(inputs)) == 1
        assert row.count('<figure class="together">') == 1
    names = re.findall(r'<input type="radio" name="([^"]+)" checked>', page)
    assert len(set(names)) == len(names) == 5
    top = page[: page.index("<nav>")]
    for place, name in enumerate(results(measured, "fourier")):
        swatch = f'<i class="swatch" style="background:{apart(place)}"></i><bdi>{name}</bdi>'
        assert swatch in top
        # The card and every caption have the same.
        assert page.count(swatch) == 2 + 5
        assert f'stroke="{apart(place)}"' in page


def test_one_model_alone_has_no_choice_and_no_key():
    page = render(Collected([subject("one", hessian())]))
    assert 'class="switch"' not in page
    assert 'class="swatch"' not in page


def test_what_cannot_be_compared_in_one_chart_is_not():
    page = render(
        Collected([subject(n, landscape(), trajectory(), hessian()) for n in ("one", "two")])
    )
    rows = [part.partition("</h3>") for part in page.split("<h3>")[1:]]
    titles = [title for title, _, row in rows if 'class="switch"' in row]
    assert "The true loss at each snapshot" in titles
    # Each path lies in a plane of its own; maps and bars are no curves.
    assert "The path of the weights in its principal plane" not in titles
    assert not any("around the weights" in title for title in titles)
    assert not any("Which part" in title for title in titles)


def test_matplotlib_draws_the_same(measured):
    found = results(measured, "variance")
    ax = plot_together(found, "variance")
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) > 2]
    assert [line.get_color() for line in lines] == [apart(0), apart(1)]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(found)
    with pytest.raises(WrongInput, match="Only curves of two or more results"):
        plot_together({"one": landscape(), "two": replace(landscape(), images=3)}, "nll")


def test_many_models_have_colours_of_their_own():
    assert len({apart(index) for index in range(16)}) == 16
