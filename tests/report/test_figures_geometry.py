"""Figures and words of results about the geometry of the loss, made by hand."""

from dataclasses import replace

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Coverage
from retinoscope.figures.compare import side_by_side
from retinoscope.figures.describe import figures
from retinoscope.figures.figure import Bars, Map
from retinoscope.figures.ranges import value_range
from retinoscope.probes.hessian import HessianResult
from retinoscope.probes.landscape import LandscapeResult
from retinoscope.probes.trajectory import TrajectoryResult
from retinoscope.report.build import render
from retinoscope.report.collect import Collected, Examined, Measured
from retinoscope.report.svg import svg

COVERAGE = Coverage(
    units=("stem", "a", "b", "head"), kinds=("stem", "attention", "mlp", "head"),
    stages=(None, 1, 1, None), subsamples=(False,) * 4, skipped=(("pool", "has no parameters"),),
)  # fmt: skip
PROTOCOL = {"model": "tiny", "data": "cues", "split": "train", "size": "32×32"}


def hessian(sharp=10.0, negative=0.2):
    """Two bumps on either side of 0, and four blocks of which one has no name that fits."""
    below, above = np.linspace(-sharp / 4, 0, 120), np.linspace(0, 2 * sharp, 200)
    whole = np.linspace(-sharp, 3 * sharp, 150)
    blocks = ("all", "stage 1", "attention", "stages.2.blocks.11.mlp.of_a_very_long_name.fc2")
    return HessianResult(
        protocol=PROTOCOL, coverage=COVERAGE, images=64,
        parameters=1200, left_out=("pos_embed",), weight_decay=1e-4, nll=0.5, products=4200,
        unfinished=3, nep=negative, nep_interval=(negative / 2, 2 * negative), ape=sharp,
        ape_interval=(0.8 * sharp, 1.2 * sharp), trace=12.5 * sharp, trace_error=sharp,
        blocks=blocks, block_parameters=(1200, 600, 300, 9),
        image_names=tuple(tuple(f"{b}/{i}.png" for i in range(8)) for b in range(8)),
        image_index=np.arange(64).reshape(8, 8), batch_nll=np.full(8, 0.5),
        eigenvalues=np.full((8, 5), sharp), residuals=np.zeros((8, 5)),
        negative_at=below, negative=negative * np.exp(below) * (below > -sharp / 4.2),
        positive_at=above, positive=(1 - negative) * above * np.exp(-4 * above / sharp) / sharp,
        spectrum_at=whole, spectrum=-np.abs(whole) / sharp * 2 + np.exp(-(whole**2)),
        nodes=np.zeros((8, 3)), node_weights=np.ones((8, 3)) / 3,
        unit_trace=np.array([3.0, 1.0, np.nan, 4.0]) * sharp,
        unit_trace_error=np.array([0.3, 0.2, np.nan, 0.1]) * sharp,
        block_eigenvalues=np.zeros((4, 8, 5)),
        block_sharpness=np.array([2.0, 1.5, 0.3, np.nan]) * sharp,
        block_sharpness_error=np.array([0.2, 0.1, 0.02, np.nan]) * sharp,
        block_nep=np.array([0.2, 0.1, 0.4, 0.0]),
    )  # fmt: skip


def landscape(curvature=4.0, side=11, rows=None):
    """A bowl that is twice as steep along x, with one cell that is not finite."""
    x = np.linspace(-1, 1, side)
    y = x if rows is None else np.zeros(rows)
    nll = 0.3 + curvature * (2 * x[None, :] ** 2 + y[:, None] ** 2) + 0.4 * x[None] * y[:, None]
    middle = len(y) // 2
    profiles = np.stack([nll[middle], nll[:, side // 2]]) if rows is None else nll[:1]
    nll = nll.copy()
    nll[-1, -1] = np.inf
    return LandscapeResult(
        protocol=PROTOCOL, images=64, directions=("random", "random, orthogonal to d")[: len(y)],
        weight_decay=0.05, moved=1200, kept=("norm.weight", "norm.bias"), centre_nll=0.3,
        centre_accuracy=0.91, not_finite=1, x=x, y=y, nll=nll, l2=np.ones_like(nll),
        loss=nll + 0.05, accuracy=np.ones_like(nll), distance=x, profiles=profiles,
    )  # fmt: skip


def trajectory(count=6):
    """A spiral towards its end."""
    t = np.linspace(0, 1, count)
    radius = 3 * (1 - t)
    return TrajectoryResult(
        protocol=PROTOCOL, snapshots=tuple(f"epoch {k}" for k in range(count)), images=64,
        weight_decay=0.0, explained=(0.75, 0.125) if count > 1 else None, path_length=6.0,
        distance=3.0, straightness=0.5 if count > 1 else None,
        turning=np.pi if count > 2 else None, epoch=10 * t, first=radius * np.cos(5 * t),
        second=radius * np.sin(5 * t), nll=2.3 * (1 - t) + 0.1, l2=np.ones(count),
        loss=np.ones(count), accuracy=t, radius=radius,
        angle=np.where(t < 1, 5 * t, np.nan) if count > 1 else np.array([np.nan]),
        step_length=np.ones(count - 1), turn=np.ones(count - 1),
    )  # fmt: skip


def subject(name, *results):
    """A subject with these results, as if they had been read from a folder."""
    measured = [Measured(replace(r, protocol=r.protocol | {"model": name}), {}) for r in results]
    return Examined(name, "by hand", Anatomy(name, (), image=(3, 32, 32)), {}, measured)


def by_field(result):
    return {figure.field: figure for figure in figures(result)}


def test_every_kind_of_array_has_its_chart():
    drawn = by_field(hessian())
    assert list(drawn) == [
        "negative", "positive", "spectrum", "unit_trace", "block_sharpness", "block_nep",
    ]  # fmt: skip
    assert isinstance(drawn["block_nep"].chart, Bars)
    drawn = by_field(landscape())
    assert list(drawn) == ["nll", "loss", "profiles"]
    assert isinstance(drawn["nll"].chart, Map)
    assert list(by_field(trajectory())) == ["second", "nll", "angle"]


def test_a_map_has_labels_numbers_and_what_is_not_finite():
    figure = by_field(landscape())["nll"]
    assert figure.header == ("along d", "along e", "NLL (nats)")
    assert figure.rows[0] == ("−1", "−1", "12.7")
    assert figure.rows[-1] == ("1", "1", "not finite")
    assert len(figure.rows) == 121
    drawn = str(svg(figure.chart))
    assert 'data-label="along d 0 · along e 0 · 0.3"' in drawn
    assert 'data-label="along d 1 · along e 1 · not finite"' in drawn


def test_a_map_whose_places_are_out_of_order_is_the_same_map():
    result = landscape()
    order = np.random.default_rng(0).permutation(11)
    mixed = replace(result, x=result.x[order], nll=result.nll[:, order])
    assert svg(by_field(mixed)["nll"].chart) == svg(by_field(result)["nll"].chart)


def test_a_map_of_one_row_is_its_profile():
    drawn = by_field(landscape(rows=1))
    assert list(drawn) == ["profiles"]
    assert len(drawn["profiles"].chart.lines) == 1


def test_nothing_is_drawn_of_nothing():
    empty = replace(hessian(), positive=np.array([]), positive_at=np.array([]))
    assert "positive" not in by_field(empty)
    lost = replace(landscape(), nll=np.full((11, 11), np.nan))
    assert list(by_field(lost)) == ["loss", "profiles"]
    assert list(by_field(trajectory(1))) == ["second", "nll"]


def test_a_density_is_an_area_whose_points_are_only_seen_when_pointed_at():
    drawn = by_field(hessian())
    area = str(svg(drawn["positive"].chart))
    assert area.count("<circle") == area.count('fill-opacity="0"') == 200
    assert area.count("<polygon") == 1
    assert value_range(drawn["positive"].chart.lines, True)[0] == 0.0
    assert drawn["positive"].chart.x_label == "eigenvalue (λ)"
    profile = str(svg(by_field(landscape())["profiles"].chart))
    assert "fill-opacity" not in profile
    assert "<polygon" not in profile


def test_a_path_keeps_its_order_and_names_its_ends():
    result = trajectory()
    figure = by_field(result)["second"]
    (line,) = figure.chart.lines
    np.testing.assert_array_equal([p.x for p in line.points], result.first)
    np.testing.assert_array_equal([p.y for p in line.points], result.second)
    assert line.points[2].label.startswith("epoch 2 · first principal direction −0.7491 ·")
    low, high = figure.chart.x_range
    assert low < result.first.min() < result.first.max() < high
    drawn = str(svg(figure.chart))
    named = [name for name in result.snapshots if f">{name}</text>" in drawn]
    assert named == ["epoch 0", "epoch 5"]
    assert drawn.count('class="end"') == 2
    assert figure.rows[1][0] == "epoch 1"
    angle = by_field(result)["angle"].chart
    assert angle.lines[0].ends == ("epoch 0", "epoch 4")  # the last has no angle
    one = str(svg(by_field(trajectory(1))["second"].chart))
    assert one.count('class="end"') == one.count(">epoch 0</text>") == 1
    assert "nan" not in one


def test_charts_side_by_side_can_be_compared():
    sharp, flat = hessian(10.0), hessian(4.0)
    charts, note = side_by_side([by_field(r)["positive"].chart for r in (sharp, flat)])
    assert {chart.x_range for chart in charts} == {(0.0, 20.0)}
    assert charts[0].y_range == charts[1].y_range
    assert note == ""
    charts, note = side_by_side([by_field(hessian(s))["positive"].chart for s in (1.0, 1000.0)])
    assert [chart.x_range for chart in charts] == [(0.0, 2.0), (0.0, 2000.0)]
    assert note.startswith("Each chart has its own x axis")
    charts, note = side_by_side([by_field(r)["block_sharpness"].chart for r in (sharp, flat)])
    assert charts[0].x_range == charts[1].x_range
    maps, _ = side_by_side([by_field(landscape(c))["nll"].chart for c in (4.0, 1.0)])
    assert maps[0].scale == maps[1].scale
    low, high = maps[0].scale.low, maps[0].scale.high
    assert low == 0.3
    assert high > 0.3 + 3 * 1.0  # what the flatter of them reaches
    bowl = by_field(landscape(4.0))["nll"].chart
    maps, note = side_by_side([bowl, replace(bowl, values=2 + 0.01 * bowl.values)])
    assert [chart.scale for chart in maps] == [None, None]  # else the flatter has one colour
    assert note.startswith("Each chart has its own colours")


def test_who_has_nothing_to_draw_is_named():
    nothing = np.array([])
    convex = replace(hessian(), negative=nothing, negative_at=nothing, nep=0.0)
    page = render(Collected([subject("<one>", hessian()), subject("<two>", convex)]))
    title = "Negative eigenvalues of mini-batches: the larger the area, the further from convex"
    row = page.split(f"<h3>{title}</h3>")[1].split("<h3>")[0]
    assert row.count("<figcaption>") == 1
    assert "Nothing to draw here for <bdi>&lt;two&gt;</bdi>." in row
    assert page.count("Nothing to draw here") == 1


def test_a_single_mini_batch_has_no_interval_in_words():
    said = " ".join(replace(hessian(), nep_interval=None, ape_interval=None).findings())
    assert "(NEP), at an NLL of 0.5 the positive ones" in said
    assert "(APE)" in said
    assert "unknown" not in said


def test_words_say_what_the_numbers_are():
    said = " ".join(hessian(10.0, 0.2).findings())
    for words in (
        "20 % of the eigenvalues of largest magnitude are negative",
        "negative (NEP, 95 % interval 10 % to 40 %), at an NLL of 0.5",
        "the positive ones are 10 on average (APE, 95 % interval 8 to 12), at an NLL of 0.5",
        "found: 40 eigenvalues of 8 mini-batches, from ",
        ", with 4,200 Hessian-vector products, at an NLL of 0.5",
        "trace of the NLL's Hessian is 125 ± 10 (standard error), at an NLL of 0.5",
        "weight decay 0.0001 is part of the loss",
        "1 tensor without a gradient omitted: pos_embed",
        "3 of the eigenvalues did not converge",
    ):
        assert words in said
    quiet = replace(
        hessian(), left_out=(), unfinished=0, ape=None, ape_interval=None, weight_decay=0.0
    )
    said = " ".join(quiet.findings())
    assert "their mean (APE) is not defined" in said
    assert "without weight decay" in said
    assert "converged" not in said
    assert "without a gradient" not in said
    many = replace(hessian(), left_out=tuple(f"p{k}" for k in range(9)))
    assert "p4, p5 and 3 more" in " ".join(many.findings())


def test_words_of_landscapes_and_paths():
    said = " ".join(landscape().findings())
    for words in (
        "the NLL at the weights themselves is 0.3, the accuracy 91 %",
        "1 of 121 cells have a loss that is not finite",
        "direction d: random; direction e: random, orthogonal to d",
        "1,200 parameters move, 2 tensors stay fixed: norm.weight, norm.bias",
    ):
        assert words in said
    assert "finite in all 121 cells" in " ".join(replace(landscape(), not_finite=0).findings())
    said = " ".join(trajectory().findings())
    for words in (
        "the plane explains 87.5 % of the variance of the weights over 6 snapshots (75 % and",
        "the path is 6 long; the distance from its first to its last point is 3 (straightness 0.5",
        "its turning angles add up to 180°",
        "the NLL changes from 2.4 to 0.1",
    ):
        assert words in said
    assert trajectory(1).findings() == ["the weights do not move over 1 snapshot, at an NLL of 2.4"]


def test_the_page_tells_of_all_three():
    page = render(
        Collected([subject("one", hessian(), landscape(), trajectory()), subject("two", hessian())])
    )
    assert page.count("At an NLL of 0.5.") == 6  # below each figure of curvature
    assert page.count("At an NLL of 0.3.") == 3  # and of a landscape
    assert page.count('class="chart heat"') == page.count("<canvas") == 2
    assert page.count('class="chart bars"') == 4
    assert "Shaded: two standard errors over mini-batches." in page
    assert "Whiskers: two standard errors over mini-batches." in page
    row = page.split('<td class="word">landscape</td>')[1].split("</tr>")[0]
    assert row.startswith('<td class="word">measured</td><td>64</td><td></td>')
    assert "unit pool not measured: has no parameters" in page
    assert ">nan" not in page.lower()
