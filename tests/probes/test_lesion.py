"""Against a naive twin on the eager model; exact where nothing is lost; divided in any way."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from retinoscope import Run, measure
from retinoscope.anatomy.replay import Replay
from retinoscope.core.errors import NotApplicable, NotResidual, RetinoscopeError, UnknownUnit
from retinoscope.core.probe import Piece
from retinoscope.core.settings import WrongSetting
from retinoscope.figures.describe import figures
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.numerics.derangement import derangement
from retinoscope.probes.lesion import Lesion
from retinoscope.run.engines.processes import InProcesses
from retinoscope.run.key import key_of
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY
from run.test_shared_pass import VIT
from sampling import PROOF

IMAGES = 70  # two groups


class Stages(nn.Module):
    """Three residual convolutions, a strided one, two more; each branch has a switch."""

    def __init__(self, quiet=()):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 2, 2)
        for name in "abcde":
            self.add_module(name, nn.Conv2d(6, 6, 3, padding=1))
        self.head = nn.Linear(6, 10)
        self.off, self.quiet = (), quiet

    def step(self, x, name):
        if name in self.off:
            return x
        branch = getattr(self, name)(x).relu()
        return x + (0 * branch if name in self.quiet else branch)

    def forward(self, x):
        x = self.stem(x)
        for name in "abc":
            x = self.step(x, name)
        x = self.down(x).relu()
        for name in "de":
            x = self.step(x, name)
        return 8 * self.head(x.mean((2, 3)))


@cache
def staged(quiet="", **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # drawing at order one keeps the signs of the initial weights
        model = draw_at_order_one(Stages(quiet)).eval()
    options = dict(name="staged", size=(16, 16), images=IMAGES, precision="float64") | settings
    return load_subject(model, "cues", **options)


@cache
def vit(**settings):
    return load_subject(VIT, "cues", **{"images": IMAGES} | settings)


@cache
def answered(subject, **settings):
    """The answer for ``staged`` or ``vit``, measured once."""
    return measure(Lesion(**settings), subject())


def quiet():
    return staged(quiet="b")


def same(found, expected, rtol=1e-6):
    """Predictions are equal, the rest up to rounding, which differs between batch sizes."""
    for name, array in expected.arrays().items():
        np.testing.assert_allclose(
            found.arrays()[name], array, rtol=rtol, atol=1e-6, err_msg=name, equal_nan=True
        )
    assert found.images == expected.images


@torch.no_grad()
def test_equals_a_naive_twin_image_by_image(monkeypatch):
    """The eager model without a branch, one image at a time, probabilities written out."""
    subject = staged()
    found = answered(staged)
    assert found.units == tuple("abcde")
    assert found.skipped == tuple(
        (name, "has no skip connection that could replace its output")
        for name in ("stem", "down", "head")
    )
    split = subject.split(Lesion().needs)
    images = list(split.batches(range(IMAGES), 1))
    labels = [int(one.labels[0]) for one in images]

    def answers(off):
        monkeypatch.setattr(subject.backbone, "off", off)
        return [subject.model(one.images.double())[0].softmax(0).numpy() for one in images]

    intact = answers(())
    right = np.array([p.argmax() == y for p, y in zip(intact, labels, strict=True)])
    nll = np.array([-np.log(p[y]) for p, y in zip(intact, labels, strict=True)])
    assert found.accuracy == right.mean()
    assert found.nll == pytest.approx(nll.mean(), rel=1e-12)
    for k, name in enumerate("abcde"):
        other = answers((name,))
        hits = np.array([q.argmax() == y for q, y in zip(other, labels, strict=True)])
        lost = np.array([-np.log(q[y]) for q, y in zip(other, labels, strict=True)])
        moved = np.array([p.argmax() != q.argmax() for p, q in zip(intact, other, strict=True)])
        kl = np.array([(p * np.log(p / q)).sum() for p, q in zip(intact, other, strict=True)])
        assert found.accuracy_change[k] == pytest.approx(hits.mean() - right.mean(), abs=1e-12)
        assert found.nll_change[k] == pytest.approx((lost - nll).mean(), rel=1e-6)  # stored single
        assert found.changed[k] == pytest.approx(moved.mean(), abs=1e-12)
        assert found.kl[k] == pytest.approx(kl.mean(), rel=1e-6)
        assert found.kl[k] > 0.01, "removing it mattered"
        # The interval, by a loop with the same draws.
        random, changes = np.random.default_rng(0), hits.astype(float) - right
        means = [changes[random.integers(IMAGES, size=IMAGES)].mean() for _ in range(1000)]
        np.testing.assert_allclose(
            found.accuracy_change_interval[k], np.quantile(means, [0.025, 0.975]), atol=1e-12
        )
        assert found.accuracy_change_error[k] == pytest.approx(np.std(means))


def test_a_unit_that_adds_nothing_changes_nothing():
    found = answered(quiet)
    for name in ("accuracy_change", "nll_change", "changed", "kl", "influence"):
        assert getattr(found, name)[1] == 0
        assert (getattr(found, f"{name}_interval")[1] == 0).all()
    assert (found.kl[[0, 2, 3, 4]] > 0).all()
    assert (found.influence[[0, 2, 3, 4]] > 0).all()


def test_first_and_last_units_of_stages_are_compared():
    found = answered(staged)
    assert found.stages == (1, 1, 1, 2, 2)
    assert (found.ends, found.end_kinds) == (("conv, first", "conv, last"), ("conv",))
    assert found.end_stages == (2,)
    first, last = found.accuracy_change[[0, 3]].mean(), found.accuracy_change[[2, 4]].mean()
    np.testing.assert_allclose(found.stage_ends, [first, last])
    np.testing.assert_allclose(
        found.stage_ends_kl, [found.kl[[0, 3]].mean(), found.kl[[2, 4]].mean()]
    )
    assert found.end_difference == pytest.approx(first - last)
    low, high = found.end_difference_interval[0]
    assert low <= first - last <= high
    assert low < high
    (said,) = [text for text in found.findings() if text.startswith("the first conv unit of a")]
    assert "(mean over 2 stages; difference " in said
    assert "95 % interval" in said
    assert [f.field for f in figures(found)] == [
        "accuracy_change", "nll_change", "kl", "influence", "stage_ends",
    ]  # fmt: skip
    single = answered(vit)
    assert "the first mlp unit of its only stage costs" in " ".join(single.findings())
    lone = measure(Lesion(units="a+d"), staged())
    assert "no stage has several lesions of one kind to compare" in lone.findings()
    assert dict(lone.skipped)["b"] == "not chosen"


def test_influence_is_ranked_with_the_damage():
    peer = pytest.importorskip("scipy.stats")
    found = answered(staged)
    expected = peer.spearmanr(found.nll_change, found.influence).statistic
    assert found.correlation == pytest.approx(expected)
    low, high = found.correlation_interval
    assert -1 <= low <= high <= 1
    assert "rank the units with a Spearman correlation of" in " ".join(found.findings())
    few = measure(Lesion(units="a+b"), staged())
    assert few.correlation is None


@pytest.mark.parametrize("settings", [
    {}, {"remove": "heads", "replacement": "mean"}, {"remove": "prefix", "replacement": "shuffle"},
], ids=str)  # fmt: skip
def test_batch_size_and_memory_change_nothing(settings, monkeypatch, tmp_path):
    expected = answered(vit, **settings)
    same(measure(Lesion(**settings), vit(batch=7)), expected)
    fitting = Replay.fitting

    def small(self, batch):
        if len(batch) > 20:
            raise torch.OutOfMemoryError("no room")
        return fitting(self, batch)

    monkeypatch.setattr(Replay, "fitting", small)
    monkeypatch.setattr("retinoscope.run.run.check_deterministic", lambda *_: [])
    monkeypatch.setattr(Lesion, "seconds", lambda *_: 0.0)
    same(Run(tmp_path).measure(Lesion(**settings), vit()), expected)
    (note,) = tmp_path.rglob("lesion.*.note.json")
    assert "a mini-batch of 64 goes through in 4 parts" in note.read_text()


@PROOF
def test_jobs_change_nothing(tmp_path):
    """Shuffled heads: which image replaces which depends on the group alone."""
    settings = {"remove": "heads", "replacement": "shuffle"}
    run = Run(tmp_path, engine=InProcesses(2))
    same(run.measure(Lesion(**settings), vit()), answered(vit, **settings))
    assert len(list(tmp_path.rglob("lesion.*/*.piece"))) == 2


@torch.no_grad()
@pytest.mark.parametrize("replacement", ["zero", "mean", "shuffle"])
def test_heads_are_replaced_by_group(replacement):
    """Written with the eager model: images 0–63 replace each other's, and 64–69."""
    subject = vit()
    found = answered(vit, remove="heads", replacement=replacement)
    assert found.units[4] == "blocks.1.attn head 1"
    assert found.head_kl.shape == (2, 3)
    np.testing.assert_array_equal(found.head_kl.ravel(), found.kl)
    (batch,) = subject.split(Lesion().needs).batches(range(IMAGES), IMAGES)
    projection, kl = subject.backbone.blocks[1].attn.proj, []
    for start, stop in ((0, 64), (64, IMAGES)):

        def change(_, given, start=start):
            out = given[0].clone().unflatten(-1, (3, 4))
            values = out[:, :, 1]
            new = {
                "zero": lambda: 0,
                "mean": lambda: values.mean(0),
                "shuffle": lambda: values[derangement(len(values), (0, start))].clone(),
            }[replacement]()
            out[:, :, 1] = new
            return (out.flatten(2),)

        images = batch.images[start:stop]
        p = subject.model(images).double().log_softmax(1)
        hook = projection.register_forward_pre_hook(change)
        q = subject.model(images).double().log_softmax(1)
        hook.remove()
        kl += (p.exp() * (p - q)).sum(1).tolist()
    assert found.kl[4] == pytest.approx(np.mean(kl), rel=1e-4)  # single precision
    assert found.kl[4] > 1e-4
    assert "replaced by " in found.findings()[0]


def test_a_token_that_no_image_has_touched_can_be_shuffled_freely():
    """After the stem all images have the same class token; at the end it decides everything."""
    found = answered(vit, remove="prefix", replacement="shuffle")
    assert [name.split()[1:] for name in found.units] == [["token", "0"]] * 5
    assert found.kl[0] == 0
    assert found.changed[-1] > 0.05
    # An MLP sees each token on its own, so it does not matter whether it runs before or after.
    np.testing.assert_allclose(found.kl[1], found.kl[2], rtol=1e-5)


def test_groups_have_two_images_at_least():
    def starts(total):
        pieces = Lesion().pieces(SimpleNamespace(split=lambda needs: range(total)))
        assert pieces[-1].what["stop"] == total
        return [piece.what["start"] for piece in pieces]

    assert starts(2) == starts(64) == starts(65) == [0]
    assert starts(66) == starts(129) == [0, 64]
    with pytest.raises(NotApplicable, match=r"needs at least 2 images, .* there is 1"):
        starts(1)


class Unlabelled(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.random.default_rng(index).integers(0, 255, (16, 16, 3), dtype=np.uint8)


def test_without_labels_only_the_outputs_are_compared(tmp_path):
    model = staged().backbone
    subject = load_subject(model, Unlabelled(), name="staged", size=(16, 16), images=None)
    found = Run(tmp_path).measure(Lesion(), subject)
    assert found.accuracy is None
    assert found.nll is None
    assert np.isnan(found.accuracy_change).all()
    assert np.isfinite(found.kl).all()
    assert found.kl.min() > 0
    said = " ".join(found.findings())
    assert "most predictions change without" in said
    assert "nats of KL divergence" in said
    assert "block influence and KL divergence rank the units" in said
    assert "accuracy and NLL were not measured: these images have no labels" in said
    assert [f.field for f in figures(found)] == ["kl", "influence"]
    (saved,) = (p for p in tmp_path.rglob("lesion.*.json") if "note" not in p.name)
    assert json.loads(saved.read_text())["unlabelled"].startswith("these images have no labels")
    # Weight decay belongs to losses that need labels; here it must not change the key.
    assert key_of(Lesion(), replace(subject, weight_decay=0.3)) == key_of(Lesion(), subject)


def test_too_few_images_of_a_group_can_be_read(tmp_path):
    from PIL import Image

    for place in range(66):
        pixels = np.random.default_rng(place).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{place:02d}.png")
    (tmp_path / "65.png").write_bytes(b"no image")
    subject = load_subject(VIT, str(tmp_path), images=None)
    found = measure(Lesion(remove="heads", replacement="mean"), subject)
    assert found.images == 64  # the only image of the second group has no other to be replaced by
    assert measure(Lesion(remove="heads"), subject).images == 65


def test_outputs_that_are_not_finite_are_counted_and_said():
    class Diverging(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.a = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.b, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 10)

        def forward(self, x):
            x = self.stem(x).relu()
            x = x + (self.a(x).relu() + 1)
            x = x + self.b(x).relu()
            return self.head((x - 0.9).log().mean((2, 3)))

    model = draw_at_order_one(Diverging()).eval()
    with torch.no_grad():
        model.stem.bias.fill_(-9)  # so that the state is 0 before the first unit adds 1
    subject = load_subject(model, "cues", name="diverging", size=(8, 8), images=10)
    found = measure(Lesion(), subject)
    assert found.not_finite == ("a",)
    assert np.isnan(found.kl[0])
    assert np.isnan(found.nll_change_interval[0]).all()
    assert found.changed[0] == 1
    assert found.accuracy_change[0] == -found.accuracy
    assert np.isfinite(found.kl[1])
    assert "some outputs without a are not finite" in " ".join(found.findings())
    with torch.no_grad():
        model.stem.bias.fill_(-1e38)
        model.a.bias.fill_(-9)
        model.b.weight.fill_(1e38)
    broken = load_subject(model, "cues", name="broken", size=(8, 8), images=10)
    with pytest.raises(RetinoscopeError, match="4 of 4 images are not finite, with nothing"):
        measure(Lesion(), broken)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"units": "head"}, NotResidual, "'head' of staged is not residual.*removed: a, b, c, d"),
        ({"units": "a+f"}, UnknownUnit, "staged has no unit 'f'"),
        ({"remove": "heads"}, NotApplicable,
         "needs an attention whose heads the graph shows.*; staged has none"),
        ({"remove": "prefix", "units": "a+b"}, NotApplicable,
         r"needs prefix tokens, such as a class token; a \+ b of staged has none"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_removed(settings, error, says):
    with pytest.raises(error, match=says):
        measure(Lesion(**settings), staged())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"replacement": "mean"}, "replacement=mean needs remove=heads or remove=prefix"),
        ({"remove": "pairs", "units": "a"}, "units=… cannot be combined with remove=pairs"),
        ({"resamples": 10}, "resamples is 100 or more; got 10"),
        ({"remove": "layers"}, "remove is one of units, stages, pairs, .*; got 'layers'"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit(settings, says):
    with pytest.raises(WrongSetting, match=says):
        Lesion(**settings)


def test_dense_outputs_and_random_networks_are_not_applicable():
    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.a = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            x = self.stem(x)
            x = x + self.a(x).relu()
            return nn.functional.interpolate(x, scale_factor=2)

    subject = load_subject(Dense().eval(), Unlabelled(), name="dense", size=(16, 16), images=None)
    with pytest.raises(NotApplicable, match=r"needs one vector of logits per image; .*\(4, 4, 32"):
        measure(Lesion(), subject)
    drawing = replace(load_subject(TINY, "cues", images=8), passes=2)
    with pytest.raises(NotApplicable, match="not yet defined for a network that is random"):
        measure(Lesion(), drawing)


def test_the_estimate_counts_the_units_behind_each_lesion():
    from retinoscope.core.context import Context

    subject, said = vit(), []
    whole = Lesion().seconds(subject, Context(say=said.append))
    last = Lesion(units="blocks.1.mlp").seconds(subject, Context())
    assert 0 < last < whole < 60
    assert said == []


def test_a_probe_of_one_image_alone_measures_it():
    """A piece may hold a single readable image; only all of them together need two."""
    from retinoscope.core.context import Context

    found = Lesion().measure(staged(), Piece("x", {"start": 3, "stop": 4}), Context())
    assert found["index"].tolist() == [3]
    assert found["lesion_prediction"].dtype == np.int16
    assert found["kl"].dtype == np.float32
