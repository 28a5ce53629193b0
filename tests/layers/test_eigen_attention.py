import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings
from timm.layers import Attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from retinoscope.layers.eigen_attention import EigenAttention, EigenValues
from retinoscope.models.order_one import draw_at_order_one

DIM = 6
SIGNS = [("+", 1.0), ("-", -1.0)]
FORMS = ["symmetric", "authors"]


def attention(sign="+", form="symmetric", heads=2, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = EigenAttention(DIM, heads, sign, form, **options)
    return draw_at_order_one(made).double().eval()


def tokens(length=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, length, DIM, generator=generator, dtype=torch.float64)


def filled(theta, psi, sign, form="symmetric"):
    """EigenValues that hold these parameters."""
    values = EigenValues(len(psi), sign, form, dtype=theta.dtype)
    with torch.no_grad():
        values.theta.copy_(theta)
        values.psi.copy_(psi)
    return values


@st.composite
def parameters(draw):
    """Θ and ψ of any size and scale; ψ² must not overflow, for then H itself is infinite."""
    dim = draw(st.integers(1, 5))
    dtype, width, largest, root = draw(
        st.sampled_from([(torch.float64, 64, 1e300, 1e100), (torch.float32, 32, 1e38, 1e15)])
    )

    def numbers(count, bound):
        small = st.sampled_from([0.0, 1.0, -1.0])
        bound = torch.tensor(bound, dtype=dtype).item()
        any_size = st.floats(-bound, bound, width=width)
        return draw(st.lists(small | any_size, min_size=count, max_size=count))

    theta = torch.tensor(numbers(dim * dim, largest), dtype=dtype).reshape(dim, dim)
    return theta, torch.tensor(numbers(dim, root), dtype=dtype)


ZEROS = (torch.zeros(3, 3), torch.zeros(3))
RANK_ONE = (
    torch.full((4, 4), 1e300, dtype=torch.float64),
    torch.tensor([0, 1, 1e100, 2], dtype=torch.float64),
)
# The length of such a column is beyond float32, though each entry is not.
OVERFLOWING = (torch.full((16, 16), 3e38).tril(), torch.ones(16))


@pytest.mark.parametrize(("sign", "factor"), SIGNS)
@given(drawn=parameters())
@example(drawn=ZEROS)
@example(drawn=OVERFLOWING)
@example(drawn=RANK_ONE)
@settings(max_examples=60, deadline=None)
def test_eigenvalues_have_one_sign_whatever_the_parameters(sign, factor, drawn):
    theta, psi = drawn
    values = filled(theta, psi, sign)
    with torch.no_grad():
        vectors, H = values.vectors(), values.matrix()
    few = 50 * torch.finfo(theta.dtype).eps  # rounding of sums of a few products
    identity = torch.eye(len(psi), dtype=theta.dtype)
    torch.testing.assert_close(vectors @ vectors.mT, identity, rtol=0, atol=few)
    assert torch.equal(H, H.mT)
    found = factor * torch.linalg.eigvalsh(H)
    largest = psi.square().max().item()
    assert found.min() >= -few * largest
    expected = psi.square().sort().values
    torch.testing.assert_close(found.sort().values, expected, rtol=0, atol=few * largest)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("sign", "factor"), SIGNS)
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_every_head_has_eigenvalues_of_that_sign(form, sign, factor, heads):
    values = attention(sign, form).values
    per_head = values.head_matrices(heads).detach()
    assert per_head.shape == (heads, DIM, DIM)
    torch.testing.assert_close(per_head.sum(0), values.matrix(), rtol=0, atol=1e-12)
    eigenvalues = torch.linalg.eigvals(per_head)
    assert eigenvalues.imag.abs().max() < 1e-10  # real, though the authors' is not symmetric
    assert (factor * eigenvalues.real).min() > -1e-10
    assert ((factor * eigenvalues.real) > 1e-3).sum(1).tolist() == [DIM // heads] * heads
    symmetric = torch.allclose(per_head, per_head.mT, atol=1e-12)
    assert symmetric == (form == "symmetric" or heads == 1)


@pytest.mark.parametrize(("sign", "factor"), SIGNS)
@pytest.mark.parametrize("form", FORMS)
def test_one_head_written_out(sign, factor, form):
    """X + A X V Λ Vᵀ; in the authors' order V cancels and X + A X Λ is left."""
    layer, X = attention(sign, form, heads=1), tokens()
    query, key = (X @ layer.qk.weight.mT).chunk(2, -1)
    A = (query @ key.mT / DIM**0.5).softmax(-1)
    V = torch.linalg.qr(layer.values.theta).Q
    L = torch.diag(factor * layer.values.psi**2)
    H = V @ L @ V.mT if form == "symmetric" else L
    torch.testing.assert_close(X + layer(X), X + A @ X @ H, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.values.matrix(), H, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads", [1, 2])
def test_heads_written_out(form, heads):
    layer, X = attention("-", form, heads), tokens()
    width = DIM // heads
    query, key = (X @ layer.qk.weight.mT).chunk(2, -1)
    expected = torch.zeros_like(X)
    for head, H in enumerate(layer.values.head_matrices(heads)):
        mine = slice(head * width, (head + 1) * width)
        A = (query[..., mine] @ key[..., mine].mT / width**0.5).softmax(-1)
        expected += A @ X @ H
    torch.testing.assert_close(layer(X), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", ["plain", "added", "boolean", "causal"])
def test_called_like_that_of_timm(form, call):
    """Given the same weights, timm's attention gives the same tokens."""
    ours, X = attention("-", form), tokens()
    peer = Attention(DIM, 2, qkv_bias=False, proj_bias=False).double().eval()
    value, output = ours.values.weights()
    with torch.no_grad():
        peer.qkv.weight.copy_(torch.cat((ours.qk.weight, value)))
        peer.proj.weight.copy_(output)
    added = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    options = {
        "plain": {},
        "added": {"attn_mask": added},
        "boolean": {"attn_mask": (added > 0) | torch.eye(5, dtype=torch.bool)},
        "causal": {"is_causal": True},
    }[call]
    torch.testing.assert_close(ours(X, **options), peer(X, **options), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", ["+", "-"])
def test_parameters_and_how_they_are_drawn(sign):
    dim = 96
    layer = EigenAttention(dim, 3, sign)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "qk.weight": (2 * dim, dim),
        "values.theta": (dim, dim),
        "values.psi": (dim,),
    }
    assert sum(p.numel() for p in layer.parameters()) == 3 * dim**2 + dim
    theta, psi = layer.values.theta, layer.values.psi if sign == "+" else -layer.values.psi
    assert 0 <= psi.min() < 0.2 < 0.8 < psi.max() <= 1
    assert 0.95 * dim**-0.5 < theta.abs().max() <= dim**-0.5


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_exact_and_reach_both_parameters(form):
    layer, X = attention("-", form), tokens(3)[:1]
    names = ("qk.weight", "values.theta", "values.psi")
    drawn = [layer.get_parameter(name).detach().requires_grad_() for name in names]

    def branch(*given):
        return torch.func.functional_call(layer, dict(zip(names, given, strict=True)), (X,))

    assert torch.autograd.gradcheck(branch, drawn)
    with sdpa_kernel(SDPBackend.MATH):  # the fused ones have no second derivative
        assert torch.autograd.gradgradcheck(branch, drawn)
    for gradient in torch.autograd.grad(branch(*drawn).square().sum(), drawn):
        assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize(("form", "reached"), [("symmetric", True), ("authors", False)])
def test_one_head_of_the_authors_learns_no_vectors(form, reached):
    """V cancels there, so no gradient reaches Θ."""
    layer = attention("+", form, heads=1)
    layer(tokens()).square().sum().backward()
    assert (layer.values.theta.grad.abs().max().item() > 1e-3) is reached
    assert (layer.values.theta.grad.abs().max().item() < 1e-10) is not reached


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_export_and_meta(form):
    layer, X = attention("-", form).float(), tokens().float()
    expected = layer(X)
    exported = torch.export.export(layer, (X,)).module()
    torch.testing.assert_close(exported(X), expected)
    layer.bfloat16()
    assert layer.values.vectors().dtype == layer.values.matrix().dtype == torch.float32
    assert {weight.dtype for weight in layer.values.weights()} == {torch.bfloat16}
    found = layer(X.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)  # 8 bits of mantissa
    found.sum().backward()
    assert layer.values.theta.grad.isfinite().all()
    assert EigenAttention(8, 2, "+", form, device="meta")(
        X[..., :1].expand(2, 5, 8).to("meta")
    ).is_meta


def test_dropout_only_in_training():
    layer, X = attention(attn_drop=0.5, proj_drop=0.5), tokens()
    torch.testing.assert_close(layer(X), attention()(X))
    layer.train()
    assert not torch.equal(layer(X), layer(X))


def test_refusals():
    with pytest.raises(ValueError, match=r"sign must be '\+' .* or '-' .*; got 'plus'"):
        EigenValues(4, "plus")
    with pytest.raises(ValueError, match=r"form is one of \('symmetric', 'authors'\); got 'qr'"):
        EigenValues(4, "+", "qr")
    with pytest.raises(ValueError, match="width of 6 cannot be divided equally among 4 heads"):
        EigenAttention(6, 4, "+")
    with pytest.raises(ValueError, match="among 0 heads"):
        EigenValues(6, "+").head_matrices(0)
