import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.subject import Batch, Subject
from retinoscope.geometry.curvature import Curvature, joined
from retinoscope.models.memory import DoesNotFit
from retinoscope.models.order_one import draw_at_order_one


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(found.transpose(1, 2).flatten(2))


class Small(nn.Module):
    """Convolution, both norms, fused attention, an MLP: 220 parameters."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 4, 2, stride=2), nn.BatchNorm2d(4)
        self.ln, self.attention = nn.LayerNorm(4), Attention(4, 2)
        self.mlp = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.bn(self.conv(x)).flatten(2).transpose(1, 2)
        x = x + self.attention(self.ln(x))
        x = x + self.mlp(x)
        return self.head(x.mean(1))


def subject_of(backbone, kind=Subject, **options):
    """As much of a subject as a curvature asks for."""
    parts = {"model": backbone, "replay": None, "splits": {}, "weights": "", "state": ""} | options
    return kind(name="small", backbone=backbone, fingerprint="", **parts)


def curvature_of(subject, batch, say=lambda text: None):
    return Curvature(subject.backbone, subject.batch_loss, batch, say)


def batch_of(images, soft=False, channels=2, side=4, classes=3):
    draws = torch.Generator().manual_seed(5)
    pixels = torch.rand(images, channels, side, side, generator=draws, dtype=torch.float64)
    labels = torch.randint(classes, (images,), generator=draws)
    mixed = torch.rand(images, classes, generator=draws).softmax(1)  # single precision, as made
    return Batch(pixels, tuple(range(images)), labels, mixed if soft else None)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def small():
    return draw_at_order_one(Small().double()).eval()


def plain_loss(model, batch, parameters):
    target = batch.labels if batch.targets is None else batch.targets.double()
    return functional.cross_entropy(functional_call(model, parameters, (batch.images,)), target)


def dense(model, batch):
    """The naive twin: every entry, by torch's own function."""
    named = dict(model.named_parameters())
    flat = torch.cat([tensor.detach().flatten() for tensor in named.values()])

    def loss(vector):
        parts = vector.split([tensor.numel() for tensor in named.values()])
        shaped = [part.view_as(t) for part, t in zip(parts, named.values(), strict=True)]
        return plain_loss(model, batch, dict(zip(named, shaped, strict=True)))

    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.hessian(loss, flat)


def matrix_of(curvature, places=None):
    tensors = curvature.learned.tensors
    chosen = range(len(tensors)) if places is None else places
    size = sum(tensors[place].numel() for place in chosen)
    return torch.stack([curvature.product(row, places) for row in torch.eye(size).double()])


def rows_of(curvature, places):
    starts = np.cumsum([0] + [t.numel() for t in curvature.learned.tensors])
    return torch.cat([torch.arange(starts[p], starts[p + 1]) for p in places])


@pytest.mark.parametrize("soft", [False, True])
def test_products_are_those_of_the_dense_hessian(small, soft):
    batch = batch_of(5, soft)
    expected = dense(small, batch)
    curvature = curvature_of(subject_of(small), batch)
    found = matrix_of(curvature)
    # Double precision, a few hundred terms.
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))
    assert expected.abs().max() > 0.1
    assert curvature.learned.size == len(expected)
    assert curvature.images == 5


def test_products_of_a_block_are_those_of_its_part_of_the_dense_hessian(small):
    batch = batch_of(4)
    expected = dense(small, batch)
    curvature = curvature_of(subject_of(small), batch)
    for prefix in ("attention", "bn", "conv.bias"):
        names = curvature.learned.names
        places = [place for place, name in enumerate(names) if name.startswith(prefix)]
        rows = rows_of(curvature, places)
        block = expected[rows][:, rows]
        torch.testing.assert_close(matrix_of(curvature, places), block, rtol=1e-8, atol=1e-11)
        assert block.abs().max() > 0


def test_loss_and_gradient_are_those_of_plain_autograd(small):
    batch = batch_of(5, soft=True)
    curvature = curvature_of(subject_of(small), batch)
    loss = plain_loss(small, batch, dict(small.named_parameters()))
    gradient = torch.autograd.grad(loss, list(small.parameters()))
    assert curvature.loss == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(curvature.gradient, torch.cat([g.flatten() for g in gradient]))


def test_the_matrix_is_symmetric_and_the_product_linear(small):
    curvature = curvature_of(subject_of(small), batch_of(5))
    draws = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, curvature.learned.size, generator=draws, dtype=torch.float64)
    hu, hv = curvature.product(u), curvature.product(v)
    assert float(u @ hv) == pytest.approx(float(v @ hu), rel=1e-9)
    torch.testing.assert_close(curvature.product(2 * u - 3 * v), 2 * hu - 3 * hv)


def test_softmax_regression_has_its_closed_form():
    """H = mean of (diag p − p pᵀ) ⊗ x xᵀ, where x has a 1 for the bias."""
    model = draw_at_order_one(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()).eval()
    batch = batch_of(6, channels=1, side=2)
    x = torch.cat([batch.images.flatten(1), torch.ones(6, 1).double()], 1)
    p = model(batch.images).softmax(1).detach()
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    whole = torch.einsum("nkl,nd,ne->kdle", spread, x, x) / 6
    flat = torch.arange(15).view(3, 5)
    order = torch.cat([flat[:, :4].flatten(), flat[:, 4]])  # weights first, then biases
    expected = whole.reshape(15, 15)[order][:, order]
    curvature = curvature_of(subject_of(model), batch)
    torch.testing.assert_close(matrix_of(curvature), expected)
    # Soft targets change the gradient and the loss; the Hessian does not depend on targets.
    mixed = batch_of(6, soft=True, channels=1, side=2)
    torch.testing.assert_close(matrix_of(curvature_of(subject_of(model), mixed)), expected)


class MeanLogit(Subject):
    """A loss that is linear in the logits."""

    def loss(self, logits, batch):
        return logits.mean()


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.tensor([v]).double()) for v in (2.0, 3, 5))

    def forward(self, x):
        return self.a * self.b * x.flatten(1) + self.c


def test_what_is_linear_has_no_curvature():
    batch = batch_of(4, channels=1, side=2)
    mean = float(batch.images.mean())
    curvature = curvature_of(subject_of(Bilinear(), MeanLogit), batch)
    expected = torch.tensor([[0, mean, 0], [mean, 0, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(matrix_of(curvature), expected)
    assert matrix_of(curvature, [2]).tolist() == [[0]]
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    curvature = curvature_of(subject_of(linear, MeanLogit), batch)
    assert curvature.learned.size == 15
    assert not matrix_of(curvature).any()


def test_unused_and_frozen_parameters_are_left_out_and_named(small):
    batch = batch_of(3)
    expected = dense(small, batch)
    names = list(dict(small.named_parameters()))
    kept = [place for place, name in enumerate(names) if not name.startswith(("bn", "mlp.1"))]
    rows = rows_of(curvature_of(subject_of(small), batch), kept)
    for name, tensor in small.named_parameters():
        tensor.requires_grad_(not name.startswith(("bn", "mlp.1")))
    small.register_parameter("never", nn.Parameter(torch.ones(7).double()))
    curvature = curvature_of(subject_of(small), batch)
    assert set(curvature.learned.left_out) == {
        "never", "bn.weight", "bn.bias", "mlp.1.weight", "mlp.1.bias"
    }  # fmt: skip
    assert curvature.learned.names == tuple(names[place] for place in kept)
    torch.testing.assert_close(matrix_of(curvature), expected[rows][:, rows], atol=1e-10, rtol=1e-8)
    small.requires_grad_(False)
    with pytest.raises(NotApplicable, match="all are frozen"):
        curvature_of(subject_of(small), batch)
    small.never.requires_grad_(True)
    with pytest.raises(NotApplicable, match="that affect the loss"):
        curvature_of(subject_of(small), batch)


def test_tied_parameters_count_once():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    model[3].weight = model[1].weight
    batch = batch_of(4, channels=1, side=2)
    curvature = curvature_of(subject_of(model), batch)
    assert curvature.learned.names == ("1.weight", "1.bias", "3.bias")
    torch.testing.assert_close(matrix_of(curvature), dense(model, batch))


def backends():
    cuda = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )  # fmt: skip


def test_the_model_is_left_as_it_was(small):
    small.ln.train()  # a flag of its own must stay, even an odd one
    small.head.bias.requires_grad_(False)
    small.head.weight.grad = torch.full_like(small.head.weight, 7)
    batch, before = batch_of(5), copy.deepcopy(small.state_dict())
    with torch.no_grad():
        logits = small(batch.images)
    flags, fused = [m.training for m in small.modules()], backends()
    assert fused[0]
    curvature = curvature_of(subject_of(small), batch)
    curvature.product(curvature.like)
    assert backends() == fused
    assert [m.training for m in small.modules()] == flags
    assert [n for n, t in small.named_parameters() if not t.requires_grad] == ["head.bias"]
    assert [n for n, t in small.named_parameters() if t.grad is not None] == ["head.weight"]
    assert (small.head.weight.grad == 7).all()
    assert all(torch.equal(value, before[name]) for name, value in small.state_dict().items())
    with torch.no_grad():
        assert torch.equal(small(batch.images), logits)
    loss = plain_loss(small, batch, dict(small.named_parameters()))
    (gradient,) = torch.autograd.grad(loss, small.conv.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="flash_attention"):  # fused attention is back
        gradient.sum().backward()


class Hungry(nn.Module):
    """Runs out of memory where there are more than so many images."""

    def __init__(self, model, most, error=None):
        super().__init__()
        self.inner, self.most = model, most
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def forward(self, images):
        if len(images) > self.most:
            raise self.error
        return self.inner(images)


@pytest.mark.parametrize(
    "error", [None, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_without_memory_parts_give_the_same_products(small, error):
    """Seven images in four parts of unequal size: a mean of the parts' means would be off."""
    batch, said = batch_of(7, soft=True), []
    whole = curvature_of(subject_of(small), batch)
    hungry = subject_of(small, model=Hungry(small, 2, error))
    parts = curvature_of(hungry, batch, said.append)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    torch.testing.assert_close(parts.gradient, whole.gradient, rtol=1e-10, atol=1e-12)
    draws = torch.Generator().manual_seed(0)
    vector = torch.randn(whole.learned.size, generator=draws, dtype=torch.float64)
    found, expected = parts.product(vector), whole.product(vector)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        parts.product(vector[:36], [0, 1]), whole.product(vector[:36], [0, 1]), rtol=1e-10,
        atol=1e-12,
    )  # fmt: skip
    assert said == [
        "out of memory: a mini-batch of 7 goes through in 2 parts",
        "out of memory: a mini-batch of 7 goes through in 4 parts",
    ]


def test_memory_that_ends_within_a_product(small, monkeypatch):
    batch, said = batch_of(6), []
    curvature = curvature_of(subject_of(small), batch, said.append)
    expected, loss = curvature.product(curvature.like), curvature.loss
    grad, left = torch.autograd.grad, [1]

    def once(*args, **options):
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return grad(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", once)
    found = curvature.product(curvature.like)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert curvature.loss == loss
    assert said == ["out of memory: a mini-batch of 6 goes through in 2 parts"]


def test_what_does_not_fit_one_by_one_and_other_errors_are_raised(small):
    with pytest.raises(DoesNotFit, match="One image does not fit into memory"):
        curvature_of(subject_of(small, model=Hungry(small, 0)), batch_of(3))
    fused = backends()
    with pytest.raises(RuntimeError, match="something else"):
        curvature_of(
            subject_of(small, model=Hungry(small, 0, RuntimeError("something else"))), batch_of(3)
        )
    assert backends() == fused


def test_a_loss_that_is_no_number_is_refused(small):
    with torch.no_grad():
        small.head.weight[0, 0] = torch.nan
    with pytest.raises(RetinoscopeError, match=r"network's own weights is nan .* of image 0"):
        curvature_of(subject_of(small), batch_of(3))


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4).double())

    def forward(self, x):
        return x.flatten(1) + self.w.sqrt()


def test_a_curvature_that_is_no_number_is_refused():
    curvature = curvature_of(subject_of(Root()), batch_of(3, channels=1, side=2))
    with pytest.raises(RetinoscopeError, match="is finite, but its curvature is not"):
        curvature.product(torch.ones(4).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused(small, dtype):
    with pytest.raises(NotApplicable, match=f"needs float32 or float64; the network is in {dtype}"):
        curvature_of(subject_of(small.to(dtype)), batch_of(3))


def test_single_precision_is_near_double(small):
    batch = batch_of(5)
    one = curvature_of(subject_of(small), batch)
    expected = one.product(one.like)
    other = curvature_of(subject_of(copy.deepcopy(small).float()), batch)
    found = other.product(one.like.float())
    assert found.dtype == torch.float32
    # eps is 1e-7; a network of this depth makes ten of it.
    assert float((found - expected).norm() / expected.norm()) < 1e-5


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 2).double(), nn.Linear(3, 3).double()
        self.function = function

    def forward(self, x):
        return self.head(self.function(self.conv(x)).mean((2, 3)))


def deformed(x):
    ops = pytest.importorskip("torchvision.ops")
    offset = x.new_zeros(len(x), 2, *x.shape[2:])
    return ops.deform_conv2d(x, offset, torch.eye(3)[..., None, None].to(x))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (functional.hardsigmoid, "aten::hardsigmoid_backward"),
        (Once.apply, "Once"),
        (deformed, "deform_conv2d"),
    ],
)
def test_a_step_without_a_second_derivative_is_named(function, named):
    """Autograd itself leaves out what is marked once_differentiable, and says nothing."""
    fused = backends()
    with pytest.raises(NotApplicable, match=f"there is none for {named}, which the network uses"):
        curvature_of(subject_of(Calls(function)), batch_of(3)).product(torch.ones(39).double())
    assert backends() == fused


def test_batches_are_joined():
    one, two = batch_of(2, soft=True), batch_of(3, soft=True)
    both = joined([one, two])
    assert torch.equal(both.images, torch.cat([one.images, two.images]))
    assert both.indices == (0, 1, 0, 1, 2)
    assert torch.equal(both.labels, torch.cat([one.labels, two.labels]))
    assert torch.equal(both.targets, torch.cat([one.targets, two.targets]))
    assert joined([batch_of(2)]).targets is None
