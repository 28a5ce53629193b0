import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from retinoscope.core.errors import WrongInput
from retinoscope.plots import plot
from retinoscope.plots.search import draw
from retinoscope.train.search.search import Search

HELD_OUT = np.array([[0.5, 0.54], [0.6, 0.62], [0.55, 0.6], [0.7, 0.72]])
PLANS = ((0, 0), (0, 1), (0, 2), (1, 1))


def result(deviation=True, test=True) -> Search:
    mean = HELD_OUT.mean(1)
    nothing = np.full(4, np.nan)
    return Search(
        plans=PLANS,
        seeds=(0, 1),
        winner=(1, 1),
        winner_seed=1,
        msas=np.array([0, 1, 2, 2]),
        kept=np.array([True, True, False, True]),
        parameters=np.array([10, 11, 12, 13]),
        held_out=HELD_OUT,
        test=HELD_OUT - 0.1,
        held_out_mean=mean,
        held_out_deviation=HELD_OUT.std(1, ddof=1) if deviation else nothing,
        test_mean=mean - 0.1 if test else nothing,
        test_deviation=nothing,
    )


def lines(ax):
    """Every line with more than a point, by its style."""
    found = {}
    for line in ax.lines:
        if len(line.get_xdata()) > 1 and line.get_linestyle() != "None":
            found[line.get_linestyle()] = (list(line.get_xdata()), list(line.get_ydata()))
    return found


def test_kept_candidates_are_the_line_and_the_refused_one_hangs_on_it():
    ax, mean = plot(result()), HELD_OUT.mean(1)
    found = lines(ax)
    assert found["-"] == ([0, 1, 2], mean[[0, 1, 3]].tolist())
    assert found["--"] == ([0, 1, 2], (mean - 0.1)[[0, 1, 3]].tolist())
    assert found[":"] == ([1, 2], mean[[1, 2]].tolist())
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in hollow] == [(2, mean[2])]


def test_every_plan_is_written_where_it_is():
    texts = {text.get_text(): text.xy for text in plot(result()).texts}
    assert list(texts) == ["0 0", "0 1", "0 2", "1 1"]
    assert texts["0 2"] == (2, HELD_OUT.mean(1)[2])


def test_bars_are_the_deviation_over_seeds():
    kept, refused = (container[2][0].get_segments() for container in plot(result()).containers)
    mean, deviation = HELD_OUT.mean(1), HELD_OUT.std(1, ddof=1)
    for segment, place in zip([*kept, *refused], (0, 1, 3, 2), strict=True):
        np.testing.assert_allclose(
            segment[:, 1], [mean[place] - deviation[place], mean[place] + deviation[place]]
        )


def test_what_does_not_exist_is_not_drawn():
    ax = plot(result(deviation=False, test=False))
    assert "--" not in lines(ax)
    bars = [segment for container in ax.containers for segment in container[2][0].get_segments()]
    assert [bar[0, 1] == bar[1, 1] for bar in bars] == [True] * 4


def test_draws_where_it_is_told():
    ax = Figure().add_subplot()
    assert plot(result(), ax) is ax


def test_the_same_search_gives_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(result(), tmp_path / name)
    text = (tmp_path / "a.svg").read_bytes()
    assert text == (tmp_path / "b.svg").read_bytes()
    assert not re.search(rb"20\d\d-\d\d-\d\d", text)
    assert b">attention units<" in text
    with pytest.raises(WrongInput, match="The file name of a picture must end in"):
        draw(result(), tmp_path / "a.doc")
