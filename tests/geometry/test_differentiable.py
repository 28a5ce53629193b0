import pytest
import torch
from torch import nn
from torch.nn import functional

from retinoscope.core.errors import NotApplicable
from retinoscope.geometry.differentiable import check_twice, explained, twice_differentiable
from retinoscope.models.order_one import draw_at_order_one

SHAPES = {nn.BatchNorm1d: (5, 4), nn.BatchNorm2d: (5, 4, 3, 2), nn.BatchNorm3d: (2, 4, 3, 2, 2)}


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_as_scale_and_shift_is_the_same_function(kind, affine):
    norm = draw_at_order_one(kind(4, affine=affine, eps=0.3).double()).eval()
    x = drawn(*SHAPES[kind])
    expected = norm(x)
    with twice_differentiable():
        found = norm(x)
        again = functional.batch_norm(
            x, norm.running_mean, norm.running_var, weight=norm.weight, bias=norm.bias, eps=0.3
        )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again, expected, rtol=1e-12, atol=1e-12)
    x.requires_grad_()
    assert "BatchNorm" in norm(x).grad_fn.name()
    with twice_differentiable():
        assert "BatchNorm" not in norm(x).grad_fn.name()


@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, True)])
def test_scale_or_shift_alone(weight, bias):
    x, mean, parameter = drawn(5, 4), drawn(4), drawn(4) + 2
    given = {"weight": parameter if weight else None, "bias": parameter if bias else None}
    expected = functional.batch_norm(x, mean, mean.exp(), **given)
    with twice_differentiable():
        found = functional.batch_norm(x, mean, mean.exp(), **given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tracked", [True, False])
def test_batch_norm_by_the_statistics_of_the_batch_is_left_alone(tracked):
    """In training, and in eval where it keeps none."""
    x = drawn(5, 4, 3, 2)
    norms = [nn.BatchNorm2d(4, track_running_stats=tracked).double() for _ in range(2)]
    for norm in norms:
        norm.train(tracked)
    expected = norms[0](x)
    with twice_differentiable():
        found = norms[1](x)
    assert torch.equal(found, expected)
    assert "BatchNorm" in found.grad_fn.name()
    for one, other in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        assert torch.equal(one, other)


def test_attention_is_computed_step_by_step_within_and_fused_behind():
    q = drawn(1, 2, 4, 8).requires_grad_()
    enabled = torch.backends.cuda.flash_sdp_enabled()
    before = functional.scaled_dot_product_attention(q, q, q)
    with twice_differentiable():
        found = functional.scaled_dot_product_attention(q, q, q)
        (gradient,) = torch.autograd.grad(found.pow(2).sum(), q, create_graph=True)
    torch.autograd.grad(gradient.sum(), q)
    torch.testing.assert_close(found, before, rtol=1e-12, atol=1e-12)
    after = functional.scaled_dot_product_attention(q, q, q)
    assert enabled
    assert torch.backends.cuda.flash_sdp_enabled()
    assert after.grad_fn.name() == before.grad_fn.name() != found.grad_fn.name()
    assert torch.equal(after, before)


def test_all_is_as_before_behind_an_error():
    norm, x = nn.BatchNorm1d(4).double().eval(), drawn(5, 4)
    with pytest.raises(ValueError, match="own"), twice_differentiable():
        raise ValueError("own")
    assert torch.backends.cuda.flash_sdp_enabled()
    assert "BatchNorm" in norm(x).grad_fn.name()


def test_a_missing_derivative_is_told_in_words():
    w = drawn(3).requires_grad_()
    (gradient,) = torch.autograd.grad(functional.hardsigmoid(w).sum(), w, create_graph=True)
    found = "needs second derivatives; there is none for aten::hardsigmoid_backward"
    with pytest.raises(NotApplicable, match=found) as caught, explained():
        torch.autograd.grad(gradient.sum(), w)
    assert isinstance(caught.value.__cause__, RuntimeError)
    for message in ("the derivative for 'foo' is not implemented.",
                    "double backwards on foo not supported"):  # fmt: skip
        with pytest.raises(NotApplicable, match="none for foo,"), explained():
            raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="size of tensor"), explained():
        w + drawn(2)


def test_ordinary_graphs_pass():
    w = drawn(3).requires_grad_()
    (gradient,) = torch.autograd.grad(functional.gelu(w).sum(), w, create_graph=True)
    check_twice([gradient, None, drawn(2)])


class Normed(nn.Module):
    """A convolution and a batch norm; between them, what may be."""

    def __init__(self, between, **options):
        super().__init__()
        self.conv, self.between = nn.Conv2d(4, 6, 3, **options), between
        self.bn = nn.BatchNorm2d(6)

    def forward(self, x):
        return self.bn(self.between(self.conv(x)))


OPTIONS = (
    {}, {"bias": False}, {"groups": 2, "stride": 2, "padding": 1}, {"padding": "same"},
    {"dilation": 2, "bias": False},
)  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("between", "goes"),
    [(lambda x: x, True), (torch.relu_, False), (lambda x: x.add_(1), False), (torch.tanh, False)],
)
def test_a_norm_behind_a_convolution_goes_into_its_kernel(options, between, goes):
    """Unless something has been done to what the convolution gave, in its place or not."""
    model = draw_at_order_one(Normed(between, **options).double()).eval()
    x = drawn(2, 4, 7, 7)
    expected = model(x)
    with twice_differentiable():
        found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert ("Convolution" in found.grad_fn.name()) == goes
