import numpy as np
import pytest
from matplotlib.figure import Figure

from retinoscope.core.errors import WrongInput
from retinoscope.core.result import Result
from retinoscope.plots import fourier, plot, variance
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
    for draw, values in (
        (variance.plot, results["variance"].variance),
        (variance.plot_step, results["variance"].step),
        (fourier.plot_high, results["fourier"].high),
        (fourier.plot_step, results["fourier"].high_step),
    ):
        result = results["variance"] if draw.__module__.endswith("variance") else results["fourier"]
        ax = draw(result)
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), values)
        bands = [p for p in ax.patches if p.get_width() <= 1]
        assert len(bands) == sum(result.subsamples[1:])


def test_draws_where_it_is_told(results):
    ax = Figure().add_subplot()
    assert plot(results["variance"], ax) is ax


def test_a_result_without_a_figure_of_its_own_is_drawn_from_its_axes(results):
    from retinoscope.plots import declared

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
