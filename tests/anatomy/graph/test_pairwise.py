"""Einsums of three operands and more are read as products of two."""

import pytest
import torch
from torch import nn

from retinoscope import replay
from retinoscope.anatomy.graph.export import export
from retinoscope.models.order_one import draw_at_order_one

PATTERNS = {
    "weights first": ("bhnm,bhme,hed->bnd", "avw"),
    "values first": ("bhme,bhnm,hed->bnd", "vaw"),
    "projection first": ("hed,bhnm,bhme->bnd", "wav"),
    "projection between": ("bhme,hed,bhnm->bnd", "vwa"),
    "ellipsis": ("...hnm,...hme,hed->...nd", "avw"),
    "spaces": ("zhnm, zhme, hed -> znd", "avw"),
}


class Attention(nn.Module):
    """Attention whose last einsum mixes and projects at once."""

    def __init__(self, pattern: str, order: str, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.qkv, self.heads = nn.Linear(width, 3 * width), heads
        self.out = nn.Parameter(torch.empty(heads, width // heads, width))
        self.pattern, self.order = pattern, order

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        named = {"a": weights, "v": v, "w": self.out}
        return torch.einsum(self.pattern, *(named[letter] for letter in self.order))


class Vit(nn.Module):
    """Patches, two blocks of such attention and an MLP, and a head."""

    def __init__(self, pattern: str, order: str, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.attention = nn.ModuleList([Attention(pattern, order) for _ in range(2)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)) for _ in range(2)]
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(self.norm(x))
            x = x + mlp(self.norm(x))
        return self.head(x.mean(1))


@pytest.fixture(params=PATTERNS)
def vit(request):
    model = draw_at_order_one(Vit(*PATTERNS[request.param])).eval()
    return model, replay(model, 16)


@torch.no_grad()
def test_attention_by_one_einsum_of_three_operands(vit):
    model, replayed = vit
    assert [str(unit.kind) for unit in replayed.anatomy] == [
        "stem", "attention", "mlp", "attention", "mlp", "head",
    ]  # fmt: skip
    for count in (1, 3):
        batch = torch.rand(count, 3, 16, 16)
        # The order of products is not the model's own: sums are rounded otherwise.
        torch.testing.assert_close(replayed(batch), model(batch), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_weights_and_values_can_be_seen(vit):
    model, replayed = vit
    batch = torch.rand(2, 3, 16, 16)
    names = ("queries", "keys", "values", "weights")
    state = next(s for s in replayed.walk(batch, names) if s.unit.kind == "attention")
    (weights,), (values,) = state.taps["weights"], state.taps["values"]
    assert weights.shape == (2, 1, 3, 16, 16)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 3, 16))
    tokens = model.norm(model.stem(batch).flatten(2).transpose(1, 2))
    q, k, v = model.attention[0].qkv(tokens).unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(values[:, 0], v)
    torch.testing.assert_close(state.taps["queries"][0][:, 0], q)
    expected = (q @ k.transpose(-2, -1) / 2).softmax(-1)
    torch.testing.assert_close(weights[:, 0], expected)


@torch.no_grad()
def test_a_unit_can_be_left_out(vit):
    model, replayed = vit
    batch = torch.rand(2, 3, 16, 16)
    (first, _) = (unit.name for unit in replayed.anatomy if unit.kind == "attention")
    lesioned = replayed.without(first)(batch)
    model.attention[0].out.zero_()
    torch.testing.assert_close(lesioned, model(batch), rtol=1e-5, atol=1e-5)


class Product(nn.Module):
    """One einsum of the image and learned tensors."""

    def __init__(self, pattern: str, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.pattern = pattern
        self.tensors = nn.ParameterList([torch.rand(shape) for shape in shapes])

    def forward(self, x):
        return torch.einsum(self.pattern, x, *self.tensors).flatten(1)


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        ("nchw,cd,de->nehw", [(3, 4), (4, 5)]),
        ("nchw,cd,de,ef->nf", [(3, 4), (4, 5), (5, 6)]),
        ("nchw,hk,wl->nckl", [(8, 2), (8, 2)]),
        ("nchw,dd,cd->nd", [(4, 4), (3, 4)]),  # a diagonal
        ("nchw,ocd,de->noe", [(1, 3, 4), (4, 5)]),
        ("...w,wk,kl", [(8, 2), (2, 3)]),
    ],
)
def test_any_einsum_keeps_its_numbers(pattern, shapes):
    model = Product(pattern, *shapes).eval()
    graph = export(model, 8)
    einsums = [n for n in graph.graph.nodes if "einsum" in str(n.target)]
    assert len(einsums) == len(shapes)
    assert all(len(node.args[1]) == 2 for node in einsums)
    batch = torch.rand(3, 3, 8, 8)
    module = torch.fx.GraphModule(model, graph.graph)
    order = [n for n in graph.graph.nodes if n.op == "placeholder"]
    given = [batch if n is graph.image else graph.constants[n] for n in order]
    found = module(*given)[-1]
    torch.testing.assert_close(found, model(batch))
    for node in einsums:  # what is known of each shape is what comes out
        assert len(node.args[0].partition("->")[2]) == node.meta["val"].ndim
