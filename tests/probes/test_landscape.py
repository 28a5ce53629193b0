"""Against a plain twin that loads weights for every point; exact in the middle; nothing is lost."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from retinoscope import Run, measure
from retinoscope.core.errors import NotApplicable, RetinoscopeError, WeightsMismatch
from retinoscope.geometry.directions import movable, output_axes, random_direction
from retinoscope.geometry.moving import Moving
from retinoscope.geometry.sample import seed_of
from retinoscope.geometry.scores import scored
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.landscape import Landscape
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY
from run.tiny import build


@pytest.fixture(scope="module")
def tiny():
    model = draw_at_order_one(build()).eval()
    return load_subject(model, "cues", name="tiny", size=(16, 16), images=30, weight_decay=0.1)


def batches(probe, subject):
    return list(probe._batches(subject))


def test_every_point_equals_a_twin_that_loads_weights(tiny):
    probe = Landscape(points=3, max_images=20)
    found = measure(probe, tiny)
    own = {n: t.clone() for n, t in tiny.backbone.state_dict().items()}
    moved = movable(tiny)
    ways = [random_direction(moved, "filter", seed_of(0, number)) for number in (0, 1)]
    twin = build().eval()
    (batch,) = batches(probe, tiny)
    for i, y in enumerate(found.y):
        for j, x in enumerate(found.x):
            state = dict(own)
            for name in ways[0]:
                state[name] = own[name] + x * ways[0][name] + y * ways[1][name]
            twin.load_state_dict({n: t.detach() for n, t in state.items()})
            with torch.no_grad():
                logits = twin(tiny.model.normalise(batch.images)).double()
            nll = nn.functional.cross_entropy(logits, batch.labels)
            assert found.nll[i, j] == pytest.approx(nll.item(), rel=1e-5)  # float32 weights
            hits = (logits.argmax(1) == batch.labels).double().mean().item()
            assert found.accuracy[i, j] == pytest.approx(hits, abs=0.06)  # a tie may fall
            squares = sum(t.double().square().sum() for t in twin.parameters()).item() / 2
            assert found.l2[i, j] == pytest.approx(squares, rel=1e-5)
    np.testing.assert_allclose(found.loss, found.nll + 0.1 * found.l2)
    np.testing.assert_array_equal(found.profiles, [found.nll[1], found.nll[:, 1]])
    assert np.ptp(found.nll) > 0.1  # moving mattered
    assert found.images == 20


def test_the_middle_is_the_untouched_model_and_all_comes_back(tiny):
    before = {n: t.clone() for n, t in tiny.backbone.state_dict().items()}
    probe = Landscape(points=5, max_images=16)
    found = measure(probe, tiny)
    untouched = scored(tiny, batches(probe, tiny))
    assert found.nll[2, 2] == found.centre_nll == untouched.nll
    assert found.accuracy[2, 2] == untouched.accuracy
    after = tiny.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_come_back_after_an_error(tiny, monkeypatch):
    import retinoscope.geometry.scores as scores

    before = {n: t.clone() for n, t in tiny.backbone.state_dict().items()}
    real = scores.scored

    def failing(subject, batches, say=lambda text: None):
        now = subject.backbone.state_dict()
        if not all(torch.equal(before[name], now[name]) for name in before):
            raise KeyboardInterrupt  # while the weights are elsewhere
        return real(subject, batches, say)

    monkeypatch.setattr(scores, "scored", failing)
    with pytest.raises(KeyboardInterrupt):
        measure(Landscape(points=3, max_images=8), tiny)
    after = tiny.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@settings(max_examples=8, deadline=None)
@given(
    x=st.floats(-1, 1), y=st.floats(-1, 1), seed=st.integers(0, 2**31), scale=st.sampled_from(
        ["filter", "paper", "none"]),
)  # fmt: skip
def test_turning_directions_and_place_round_changes_nothing(tiny, x, y, seed, scale):
    """L(x, y; d, e) = L(−x, −y; −d, −e), bit for bit."""
    weights = movable(tiny)
    d, e = (random_direction(weights, scale, seed + i) for i in (0, 1))
    losses = []
    for sign in (1, -1):
        turned = [{n: sign * t for n, t in way.items()} for way in (d, e)]
        with Moving(tiny.backbone.state_dict(), turned) as moving:
            moving.to(sign * x, sign * y)
            losses.append(scored(tiny, batches(Landscape(max_images=4), tiny)).nll)
    assert losses[0] == losses[1] or all(map(math.isnan, losses))


def test_a_line_is_the_middle_row_of_the_plane(tiny):
    line = measure(Landscape(points=5, dimensions=1, max_images=16), tiny)
    plane = measure(Landscape(points=5, max_images=16), tiny)
    assert line.nll.shape == (1, 5)
    np.testing.assert_array_equal(line.nll[0], plane.nll[2])
    np.testing.assert_allclose(line.l2[0], plane.l2[2], rtol=1e-12)
    assert line.profiles.shape == (1, 5)


def test_the_way_to_another_ends_at_its_loss(tmp_path):
    models = {name: draw_at_order_one(build(), seed=s).eval() for name, s in (("a", 0), ("b", 1))}
    both = [
        load_subject(models[n], "cues", name=n, size=(16, 16), images=20, others=models)
        for n in ("a", "b")
    ]
    probe = Landscape(points=3, dimensions=1, target="b", images="clean")
    way = measure(probe, both[0])
    other = measure(Landscape(points=3, dimensions=1, images="clean"), both[1])
    assert way.nll[0, 2] == pytest.approx(other.centre_nll, rel=1e-4)  # batch norm moves too
    assert way.directions == ("towards b",)
    assert way.kept == ()
    plane = measure(Landscape(points=3, target="b", images="clean"), both[0])
    assert plane.directions == ("towards b", "random direction 2")
    assert plane.nll[1, 2] == way.nll[0, 2]
    wider = nn.Sequential(nn.Flatten(), nn.Linear(768, 10)).eval()
    odd = load_subject(models["a"], "cues", name="a", size=(16, 16), images=20,
                       others={"c": wider})  # fmt: skip
    with pytest.raises(
        WeightsMismatch, match=r"no direction from a to c: their architectures differ"
    ):
        measure(Landscape(points=3, dimensions=1, target="c"), odd)


class Tied(nn.Module):
    """A weight with two names, and one whose outputs lie along its second axis."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.b.weight = self.a.weight
        self.up = nn.ConvTranspose2d(3, 5, 2)
        self.head = nn.Linear(5, 10)

    def forward(self, x):
        return self.head(self.up(self.b(self.a(x).relu()).relu()).mean((2, 3)))


def test_tied_weights_move_along_both_directions():
    """Towards another, which knows both names, and at random, which knows one."""
    models = {n: draw_at_order_one(Tied(), seed=s).eval() for n, s in (("a", 0), ("b", 1))}
    subject = load_subject(
        models["a"], "cues", name="a", size=(8, 8), images=12, others=models, precision="float64"
    )
    probe = Landscape(points=3, target="b", images="clean")
    found = measure(probe, subject)
    own, other = (dict(models[n].double().named_parameters()) for n in ("a", "b"))
    weights = movable(subject)
    way = random_direction(weights, "filter", seed_of(0, 1), output_axes(subject))
    filters = way["up.weight"].transpose(0, 1).flatten(1).norm(dim=1)
    torch.testing.assert_close(filters, own["up.weight"].transpose(0, 1).flatten(1).norm(dim=1))
    (batch,) = batches(probe, subject)
    images = subject.model.normalise(batch.images.double())
    for i, y in enumerate(found.y):
        for j, x in enumerate(found.x):
            state = {n: t + x * (other[n] - t) + y * way.get(n, 0) for n, t in own.items()}
            with torch.no_grad():
                logits = torch.func.functional_call(models["a"], state, (images,))
            nll = nn.functional.cross_entropy(logits, batch.labels).item()
            assert found.nll[i, j] == pytest.approx(nll, rel=1e-9)


def test_along_eigenvectors_the_loss_has_their_curvature():
    """(L(h) − 2 L(0) + L(−h)) / h² → λ, in double precision."""
    model = draw_at_order_one(build()).eval()
    subject = load_subject(model, "cues", name="tiny", size=(16, 16), images=20,
                           precision="float64")  # fmt: skip
    probe = Landscape(points=3, radius=1e-5, directions="eigenvectors", images="clean")
    found = measure(probe, subject)
    for profile, name in zip(found.profiles, found.directions, strict=True):
        second = (profile[0] - 2 * profile[1] + profile[2]) / 1e-10
        assert second == pytest.approx(float(name.rpartition("= ")[2]), rel=5e-3)  # 4 digits shown


def test_cells_that_are_not_finite_are_recorded_and_large_ones_do_not_overflow(tiny):
    found = measure(Landscape(points=3, radius=1e18, scale="none", max_images=8), tiny)
    assert found.not_finite == (~np.isfinite(found.nll)).sum() > 0
    assert np.isfinite(found.nll[1, 1])
    large = measure(Landscape(points=3, radius=1e4, scale="none", max_images=8), tiny)
    assert large.not_finite == 0
    assert large.nll.max() > 1e4  # a softmax first would have given infinity


def test_the_papers_variants_are_options(tiny):
    plain, paper = (
        measure(Landscape(points=3, max_images=8, scale=s, l2=n), tiny)
        for s, n in (("filter", "half_squares"), ("paper", "paper"))
    )
    norms = sum(t.double().norm().item() for t in tiny.backbone.parameters())
    assert paper.l2[1, 1] == pytest.approx(norms)
    assert paper.nll[0, 0] != plain.nll[0, 0]
    assert paper.centre_nll == plain.centre_nll


def test_lost_rows_are_done_again_and_nothing_else(tmp_path):
    probe, subject = Landscape(points=3, max_images=8), load_subject(TINY, "cues", images=10)
    whole = Run(tmp_path).measure(probe, subject)
    pieces = sorted(tmp_path.rglob("*.piece"))
    assert [p.stem for p in pieces] == ["prepared", "row-0000", "row-0001", "row-0002"]
    stamps = {p: p.stat().st_mtime_ns for p in pieces}
    pieces[2].unlink()
    again = Run(tmp_path).measure(probe, load_subject(TINY, "cues", images=10, batch=3))
    np.testing.assert_array_equal(again.l2, whole.l2)
    np.testing.assert_allclose(again.nll, whole.nll, rtol=1e-6)  # other batches, other sums
    assert all(p.stat().st_mtime_ns == stamps[p] for p in pieces if p != pieces[2])


def test_bad_input_is_told_in_words(tiny):
    for asked, said in (
        ({"points": 4}, "points must be odd"),
        ({"dimensions": 3}, "dimensions is from 1 to 2"),
        ({"radius": 0.0}, "radius is above 0"),
        ({"weight_decay": -0.1}, "weight_decay is 0 or more"),
        ({"second_target": "x"}, "second_target needs target"),
        ({"target": "x", "directions": "eigenvectors"}, "cannot be combined"),
    ):
        with pytest.raises(ValueError, match=said):
            Landscape(**asked)
    broken = draw_at_order_one(build()).eval()
    broken.head.weight.data[:] = 3e38  # finite, but its logits are not
    subject = load_subject(broken, "cues", name="broken", size=(16, 16), images=10)
    with pytest.raises(RetinoscopeError, match="is nan at its own weights, over 10 images"):
        measure(Landscape(), subject)
    images = torch.utils.data.TensorDataset(torch.rand(10, 3, 16, 16), torch.arange(10))
    only_test = load_subject(build().eval(), {"test": images}, name="tiny", size=(16, 16))
    with pytest.raises(NotApplicable, match="needs the split 'train'"):
        measure(Landscape(), only_test)
    training = load_subject(build().train(), "cues", name="tiny", size=(16, 16), images=10)
    with pytest.raises(RetinoscopeError, match="in training mode"):
        measure(Landscape(), training)
