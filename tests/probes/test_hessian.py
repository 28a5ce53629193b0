"""Against the dense Hessian, closed forms and curvlinops; and what must not change anything."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from retinoscope import Run, measure
from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable, NotDeterministic, RetinoscopeError, WrongInput
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.hessian import Hessian
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY
from run.tiny import build


class Everything(nn.Module):
    """Convolution, batch norm, layer norm, fused attention; something unused, something frozen."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 4, stride=4)
        self.bn = nn.BatchNorm2d(4)
        self.norm = nn.LayerNorm(4)
        self.qkv = nn.Linear(4, 12)
        self.proj = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        x = self.bn(self.conv(x)).flatten(2).transpose(1, 2) * self.scale
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.proj(nn.functional.scaled_dot_product_attention(q, k, v))
        return self.head(x.mean(1))


@pytest.fixture(scope="module")
def everything():
    torch.manual_seed(0)
    model = draw_at_order_one(Everything()).eval()
    return load_subject(
        model, "cues", name="everything", size=(8, 8), images=40, precision="float64"
    )


def dense(subject, batch, wanted=lambda name: True):
    """The Hessian of the mean loss as a matrix, of the parameters that are wanted."""
    named = {
        f"backbone.{name}": tensor.detach()
        for name, tensor in subject.backbone.named_parameters()
        if tensor.requires_grad and "unused" not in name and wanted(name)
    }
    sizes = [tensor.numel() for tensor in named.values()]

    def loss(vector):
        parts = vector.split(sizes)
        given = {n: p.view_as(t) for (n, t), p in zip(named.items(), parts, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            logits = functional_call(subject.model, given, (batch.images.double(),))
        return subject.loss(logits, batch)

    flat = torch.cat([tensor.flatten() for tensor in named.values()])
    return torch.autograd.functional.hessian(loss, flat, vectorize=True).numpy()


def test_both_ends_are_those_of_the_dense_hessian(everything):
    probe = Hessian(k=4, batch=8, batches=2, which="both", tolerance=1e-11, products=260)
    found = measure(probe, everything)
    for number in range(2):
        expected = np.linalg.eigvalsh(dense(everything, probe._batch(everything, number)))
        ends = np.concatenate([expected[::-1][:4], expected[:4]])
        np.testing.assert_allclose(found.eigenvalues[number], ends, rtol=1e-8)
    assert found.unfinished == 0


@pytest.mark.parametrize("images", ["augmented", "clean"])
def test_an_eigenvalue_can_be_repeated_by_hand_from_the_result_alone(images, everything):
    """The dense Hessian of the images whose indices are in the result."""
    probe = Hessian(k=2, batch=7, batches=3, images=images, tolerance=1e-11, products=260)
    found = measure(probe, everything)
    split = everything.split(probe.needs)
    assert found.image_index.shape == (3, 7)
    assert len(set(found.image_index.ravel().tolist())) == 21
    (batch,) = split.batches(found.image_index[1].tolist(), 7)
    with torch.no_grad():
        assert found.batch_nll[1] == pytest.approx(everything.batch_loss(batch).item(), rel=1e-9)
    expected = np.linalg.eigvalsh(dense(everything, batch))
    largest = expected[np.argsort(-np.abs(expected))[:2]]
    np.testing.assert_allclose(found.eigenvalues[1], largest, rtol=1e-8)
    assert found.nll == pytest.approx(found.batch_nll.mean())
    # Names are those of the source: cues are called by split and index.
    source = [f"cues/train/{place}" for place in split.places[found.image_index[1]]]
    assert list(found.image_names[1]) == source


def test_files_are_named_and_one_that_cannot_be_read_is_missing(tmp_path):
    for number in range(8):
        folder = tmp_path / "train" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "train" / "0" / "4.png").write_bytes(b"no image")
    model = build().eval()
    model.head = nn.Linear(8, 2)
    subject = load_subject(model, str(tmp_path), name="two", size=(16, 16))
    found = measure(Hessian(k=1, batch=4, batches=2, images="clean", products=3), subject)
    assert sorted((found.image_index < 0).sum(1)) == [0, 1]
    names = [name for row in found.image_names for name in row]
    assert sorted(Path(name).name for name in names) == [f"{i}.png" for i in range(8) if i != 4]
    indices = found.image_index[found.image_index >= 0].tolist()
    split = subject.split(Hessian(images="clean").needs)
    assert split.names(indices) == names


def test_nep_and_ape_are_those_of_the_largest_magnitudes_or_not_known(everything):
    plain, both, end = (
        measure(Hessian(batch=8, batches=3, which=w, blocks="kind"), everything)
        for w in ("magnitude", "both", "positive")
    )
    assert 0 < plain.nep < 1
    assert both.nep == plain.nep
    assert both.ape == pytest.approx(plain.ape, rel=2e-3)  # each value is found to 1e-3
    np.testing.assert_array_equal(both.block_nep, plain.block_nep)
    assert (end.nep, end.nep_interval, end.ape, end.ape_interval) == (None,) * 4
    assert np.isnan(end.block_nep).all()
    assert (end.eigenvalues > 0).all()


def test_blocks_are_those_of_the_dense_hessian(everything):
    probe = Hessian(batch=8, batches=2, blocks="kind", tolerance=1e-11, products=260)
    found = measure(probe, everything)
    kinds = {"stem": ("conv", "bn"), "attention": ("norm", "qkv", "proj"), "head": ("head",)}
    assert set(found.blocks) == set(kinds)
    for number in range(2):
        batch = probe._batch(everything, number)
        for block, values in zip(found.blocks, found.block_eigenvalues[:, number], strict=True):
            own = dense(everything, batch, lambda n, b=block: n.split(".")[0] in kinds[b])
            expected = sorted(np.linalg.eigvalsh(own), key=abs, reverse=True)[:5]
            np.testing.assert_allclose(values, expected, rtol=1e-8)
    assert found.left_out == ("scale", "unused.weight", "unused.bias")
    assert found.parameters == sum(found.block_parameters) == len(dense(everything, batch))


def test_softmax_regression_in_closed_form():
    """H = 1/N Σ (diag p − p pᵀ) ⊗ x̃ x̃ᵀ; at zero weights every value comes nine times."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 10)).double().eval()
    nn.init.zeros_(linear[1].weight)
    nn.init.zeros_(linear[1].bias)
    subject = load_subject(
        linear, "cues", name="regression", size=(4, 4), images=40, precision="float64",
        mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
    )  # fmt: skip
    probe = Hessian(k=12, batch=20, batches=1, tolerance=1e-9, products=400)
    found = measure(probe, subject)
    images = probe._batch(subject, 0).images.double().flatten(1)
    inputs = torch.cat([images, torch.ones(len(images), 1)], dim=1)
    values = torch.linalg.eigvalsh(inputs.T @ inputs / len(images)).flip(0) / 10
    np.testing.assert_allclose(found.eigenvalues[0], values[:2].repeat_interleave(9)[:12], 1e-8)
    assert found.nep == 0
    assert found.nep_interval is None  # of a single mini-batch
    assert found.nll == pytest.approx(np.log(10))


def test_weight_decay_shifts_every_eigenvalue_by_itself(everything):
    plain = measure(Hessian(batch=8, batches=2, weight_decay=0.0), everything)
    decayed = measure(Hessian(batch=8, batches=2, weight_decay=0.05), everything)
    np.testing.assert_array_equal(decayed.eigenvalues, plain.eigenvalues + 0.05)
    np.testing.assert_array_equal(decayed.nodes, plain.nodes + 0.05)
    assert decayed.trace == plain.trace  # that of the NLL alone
    assert decayed.weight_decay == 0.05


def test_the_density_integrates_to_one_and_its_mean_is_the_trace(everything):
    found = measure(Hessian(batch=8, batches=4, steps=30), everything)
    known = np.where(np.isnan(found.node_weights), 0, found.node_weights)
    np.testing.assert_allclose(known.sum(1), 1, atol=1e-12)
    first = (known * np.nan_to_num(found.nodes)).sum(1) * found.parameters
    assert first.mean() == pytest.approx(found.trace)
    assert found.unit_trace.sum() == pytest.approx(found.trace)
    step = found.spectrum_at[1] - found.spectrum_at[0]
    density = 10 ** np.nan_to_num(found.spectrum, nan=-np.inf)
    assert density.sum() * step == pytest.approx(1, abs=1e-5)
    assert (density * found.spectrum_at).sum() * step * found.parameters == pytest.approx(
        found.trace, abs=0.01 * np.abs(found.nodes[np.isfinite(found.nodes)]).max()
    )
    for at, part, share in (
        (found.negative_at, found.negative, found.nep),
        (found.positive_at, found.positive, 1 - found.nep),
    ):
        assert np.trapezoid(part, at) == pytest.approx(share, abs=0.02)  # 200 points of a bell


VIT = ("vit_tiny_patch16_224", dict(img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2))


@pytest.mark.parametrize("attention", [True, False])
def test_agrees_with_curvlinops(order_one, attention):
    """Its own operator and SciPy's ARPACK, in double precision.

    Gains of layer norms are frozen: curvlinops goes forward over the gradient, and torch 2.15's
    forward derivative of theirs is wrong (finite differences say so below).
    """
    peer = pytest.importorskip("curvlinops")
    eigsh = pytest.importorskip("scipy.sparse.linalg").eigsh
    if attention:
        model = order_one(VIT[0], num_classes=10, **VIT[1]).double()
    else:
        model = draw_at_order_one(build()).double().eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.requires_grad_(False)
    subject = load_subject(
        model, "cues", name="peer's", size=(16, 16), images=16, precision="float64"
    )
    probe = Hessian(batch=12, batches=1, tolerance=1e-6)
    found = measure(probe, subject).eigenvalues[0]
    batch = probe._batch(subject, 0)
    learned = [tensor for tensor in subject.backbone.parameters() if tensor.requires_grad]
    with sdpa_kernel(SDPBackend.MATH):
        hessian = peer.HessianLinearOperator(
            subject.model, nn.CrossEntropyLoss(), learned, [(batch.images.double(), batch.labels)]
        )
        expected = eigsh(hessian.to_scipy(), k=5, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-5)


def test_a_product_is_the_difference_of_two_gradients(order_one):
    """With respect to all parameters, the gains of norms included."""
    from retinoscope.geometry.curvature import Curvature

    subject = load_subject(
        order_one(VIT[0], num_classes=10, **VIT[1]).double(), "cues", name="vit", size=(16, 16),
        images=16, precision="float64",
    )  # fmt: skip
    batch = Hessian(batch=8)._batch(subject, 0)
    curvature = Curvature(subject.backbone, subject.batch_loss, batch)
    vector = torch.randn(curvature.learned.size, dtype=torch.float64)
    parts = vector.split([tensor.numel() for tensor in curvature.learned.tensors])
    found, ends = curvature.product(vector), []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for tensor, part in zip(curvature.learned.tensors, parts, strict=True):
                tensor.add_(part.view_as(tensor), alpha=step)
        ends.append(Curvature(subject.backbone, subject.batch_loss, batch).gradient)
    expected = (ends[0] - ends[1]) / 2e-5
    error = (found - expected).norm() / expected.norm()
    assert error < 1e-6  # the third derivative times the square of the step


def test_the_model_comes_back_as_it_was(everything):
    before = {n: t.clone() for n, t in everything.backbone.state_dict().items()}
    asked = [t.requires_grad for t in everything.backbone.parameters()]
    image = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    answer = everything.model(image)
    measure(Hessian(batch=8, batches=1), everything)
    after = everything.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [t.requires_grad for t in everything.backbone.parameters()] == asked
    assert all(t.grad is None for t in everything.backbone.parameters())
    assert torch.equal(everything.model(image), answer)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_batches_resuming_and_jobs_change_nothing(tmp_path):
    """Pieces one by one in another order, a lost piece, other batch size for reading."""
    probe = Hessian(batch=8, batches=3, k=3)
    subject = load_subject(TINY, "cues", images=40)
    whole = Run(tmp_path / "a").measure(probe, subject)
    pieces = sorted((tmp_path / "a").rglob("*.piece"))
    assert len(pieces) == 3
    pieces[1].unlink()
    for note in (tmp_path / "a").rglob("*.note.json"):
        note.unlink()
    again = Run(tmp_path / "a").measure(probe, load_subject(TINY, "cues", images=40, batch=3))
    np.testing.assert_array_equal(again.eigenvalues, whole.eigenvalues)
    backwards = [probe.measure(subject, piece, Context()) for piece in probe.pieces(subject)[::-1]]
    combined = probe.combine(subject.anatomy, backwards)
    np.testing.assert_array_equal(combined.eigenvalues, whole.eigenvalues)
    assert combined.nep == whole.nep
    assert combined.ape_interval == whole.ape_interval


def test_blocks_by_unit_and_stage_hold_all_parameters():
    subject = load_subject("micro_vit", "cues", images=8)
    for by in ("unit", "stage"):
        found = measure(Hessian(k=1, batch=4, batches=1, blocks=by, tolerance=0.3), subject)
        assert sum(found.block_parameters) == found.parameters
        assert found.block_sharpness.shape == (len(found.blocks),)
        assert (found.block_sharpness > 0).all()
    assert found.blocks == ("stem", "stage 1", "head")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k": 0}, "k is 1 or more"),
        ({"batch": 1}, "batch is 2 or more; got 1"),
        ({"products": 5}, "products must be larger than k"),
        ({"tolerance": 0.0}, "tolerance is above 0"),
        ({"steps": 300}, "steps must be at most products"),
        ({"weight_decay": -0.1}, "weight_decay is 0 or more"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        Hessian(**settings)


def test_bad_input_is_told_in_words(tmp_path):
    def subject(**settings):
        return load_subject(TINY, "cues", **{"images": 20} | settings)

    few = subject(images=9)
    with pytest.raises(NotApplicable, match="needs 16 images for a mini-batch; there are 9"):
        measure(Hessian(), few)
    with pytest.raises(NotApplicable, match=r"has 800 parameters with a gradient, and k is 900"):
        measure(Hessian(k=900, products=1000), subject())
    with pytest.raises(NotApplicable, match="needs float32 or float64"):
        measure(Hessian(), subject(precision="bfloat16"))
    broken = subject()
    with torch.no_grad():
        broken.backbone.head.bias[0] = float("nan")
    with pytest.raises(RetinoscopeError, match="own weights is nan on the mini-batch of"):
        Hessian().measure(broken, Hessian().pieces(broken)[0], Context())


def test_no_training_data_and_training_mode_are_refused():
    images = torch.utils.data.TensorDataset(torch.rand(20, 3, 16, 16), torch.arange(20) % 10)
    only_test = load_subject(build().eval(), {"test": images}, name="tiny", size=(16, 16))
    with pytest.raises(
        NotApplicable, match=r"'train' augmented; the data have: test\. Put .* train/ "
    ):
        measure(Hessian(), only_test)
    assert measure(Hessian(images="test", batches=1), only_test).images == 16
    training = load_subject(build().train(), "cues", name="tiny", size=(16, 16), images=20)
    with pytest.raises(NotDeterministic, match="in training mode: 1 BatchNorm2d"):
        measure(Hessian(), training)


def test_augmentation_and_weight_decay_are_those_of_the_training():
    """Packaged weights know their recipe; what the user says goes before it."""
    from retinoscope.data.augment import Augmentation

    known = load_subject("micro_vit", "cues", images=20)
    assert known.weight_decay == 0.05
    assert known.protocol["weight decay"] == 0.05
    own = load_subject("micro_vit", "cues", images=20, weight_decay=0.0,
                       augmentation=Augmentation(mixup=0.5))  # fmt: skip
    assert own.weight_decay == 0.0
    assert own.split(Hessian().needs).protocol["augmentation"]["mixup"] == 0.5
    assert load_subject(TINY, "cues", images=20).weight_decay == 0.0
    with pytest.raises(WrongInput, match="no setting"):
        load_subject(TINY, "cues", decay=0.1)


def test_what_is_frozen_is_part_of_the_key(tmp_path):
    """The same weights, but others of them learn: another Hessian."""
    model = build().eval()

    def measured():
        subject = load_subject(model, "cues", name="tiny", size=(16, 16), images=20)
        return Run(tmp_path).measure(Hessian(batches=1, k=2), subject)

    before = measured()
    model.stem.requires_grad_(False)
    after = measured()
    assert after.left_out == ("stem.weight", "stem.bias")
    assert after.parameters < before.parameters


def test_the_ends_are_both_drawn_and_one_mini_batch_has_no_interval(everything):
    found = measure(Hessian(batch=8, batches=1, k=3, which="both"), everything)
    assert found.negative.size > 0
    assert found.positive.size > 0
    assert np.trapezoid(found.negative, found.negative_at) == pytest.approx(0.5, abs=0.02)
    assert found.nep_interval is None
    assert found.trace_error is None


def test_a_convex_loss_has_no_negative_eigenvalues_by_rounding():
    """Of softmax regression on two images, few eigenvalues are not 0."""
    linear = draw_at_order_one(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 10))).eval()
    subject = load_subject(linear, "cues", name="convex", size=(4, 4), images=12)
    found = measure(Hessian(k=30, batch=2, batches=3), subject)
    assert found.nep == 0
    assert (found.eigenvalues == 0).any()
