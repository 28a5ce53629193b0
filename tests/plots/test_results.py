from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from report import test_figures_geometry as by_hand
from retinoscope.core.errors import WrongInput
from retinoscope.core.result import Result
from retinoscope.figures.scale import Scale
from retinoscope.plots import declared, hessian, plot
from retinoscope.plots.notebook import as_png
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("run"))
    return run.measure_all([Fourier(), Variance()], load_subject(TINY, "cues", images=20))


def test_curves_are_the_results_own(results):
    ax = plot(results["fourier"])
    assert len(ax.lines) == len(results["fourier"].units)
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), results["fourier"].log_amplitude[1])
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), results["fourier"].frequency[1])


def test_depth_has_a_band_for_the_unit_that_subsamples(results):
    for probe, field in (
        ("variance", "variance"),
        ("variance", "step"),
        ("fourier", "high"),
        ("fourier", "high_step"),
    ):
        result = results[probe]
        ax = plot(result, field=field)
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), getattr(result, field))
        bands = [p for p in ax.patches if p.get_width() <= 1]
        assert len(bands) == sum(result.subsamples[1:])


def test_draws_where_it_is_told(results):
    ax = Figure().add_subplot()
    assert plot(results["variance"], ax) is ax


def test_a_result_without_a_figure_of_its_own_is_drawn_from_its_axes(results):
    ax = declared.plot(results["fourier"])
    assert len(ax.lines) == len(results["fourier"].units)
    assert ax.get_ylabel() == "Δ log amplitude"
    assert declared.plot(results["variance"]).lines[0].get_ydata()[0] == pytest.approx(
        results["variance"].variance[0]
    )
    with pytest.raises(WrongInput, match="no array to draw"):
        declared.plot(Result())


def test_results_draw_themselves_in_a_notebook(results):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    from retinoscope.plots.notebook import register

    register()
    data, _ = shell.display_formatter.format(results["variance"])
    assert data["image/png"][:4] == b"\x89PNG"[:4] or data["image/png"].startswith("iVBOR")
    assert data["text/plain"].startswith("variance of")
    assert as_png(Result()) is None


def test_eigenvalues_are_told_apart_at_zero():
    result = by_hand.hessian()
    ax = plot(result)
    below, above = ax.lines[:2]
    np.testing.assert_array_equal(below.get_xdata(), result.negative_at)
    np.testing.assert_array_equal(above.get_ydata(), result.positive)
    assert below.get_color() != above.get_color()
    nothing = np.array([])
    none = replace(result, positive=nothing, positive_at=nothing)
    assert [line.get_label() for line in hessian.plot(none).lines[:1]] == ["negative"]
    line = plot(result, field="spectrum").lines[0]
    np.testing.assert_array_equal(line.get_ydata(), result.spectrum)


def test_blocks_stand_in_their_order():
    result = by_hand.hessian()
    ax = plot(result, field="block_sharpness")
    assert [label.get_text() for label in ax.get_yticklabels()] == list(result.blocks)
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_array_equal(widths, result.block_sharpness)
    assert ax.yaxis_inverted()


@pytest.mark.parametrize("fill", [None, np.nan, 1.0])
def test_a_landscape_is_a_map_a_surface_or_a_line(fill):
    result = by_hand.landscape()
    if fill is not None:
        result = replace(result, nll=np.full_like(result.nll, fill))
    ax = plot(result)
    shown = ax.collections[0].get_array()
    np.testing.assert_array_equal(
        shown.filled(-1), np.where(np.isfinite(result.nll), result.nll, -1)
    )
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("along d", "along e")
    ax.figure.canvas.draw()
    deep = declared.plot_surface(result)
    assert deep.get_zlabel() == "NLL (nats)"
    deep.figure.canvas.draw()
    line = plot(by_hand.landscape(rows=1)).lines[0]
    np.testing.assert_array_equal(line.get_ydata(), by_hand.landscape(rows=1).profiles[0])


def test_colours_do_not_reach_for_what_explodes():
    result = by_hand.landscape()
    result.nll[0, 0] = 1e12
    assert plot(result).collections[0].norm.vmax < 50
    assert Scale.of(by_hand.landscape().nll).high == by_hand.landscape().nll[0, 0]


def test_a_map_that_a_result_declares_is_drawn_as_one():
    ax = declared.plot(by_hand.landscape())
    assert ax.get_title() == "Negative log-likelihood around the weights"
    assert ax.get_ylabel() == "along e"
    assert not ax.lines


@pytest.mark.parametrize("count", [1, 6])
def test_a_path_shows_every_snapshot_with_its_name(count):
    result = by_hand.trajectory(count)
    ax = plot(result)
    np.testing.assert_array_equal(
        ax.collections[0].get_offsets(), np.stack([result.first, result.second], 1)
    )
    np.testing.assert_array_equal(ax.collections[0].get_array(), result.nll)
    assert [text.get_text() for text in ax.texts] == list(result.snapshots)
    ax.figure.canvas.draw()
