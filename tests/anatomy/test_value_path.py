"""The value and output maps of each head, against the modules' own weights."""

from functools import cache

import pytest
import timm
import torch
from torch import nn
from torchvision.models import VisionTransformer

from retinoscope.anatomy.attentions import attentions
from retinoscope.anatomy.dissect import take_apart
from retinoscope.anatomy.value_path import Unclear, head_maps
from retinoscope.core.unit import Kind
from retinoscope.layers.eigen_attention import EigenAttention
from retinoscope.models.order_one import draw_at_order_one
from surgery.test_eigen_attention import DIM, HEADS, PATCH, SIDE, Odd, Own, Shuffled, timm_vit


@cache
def found(family):
    """A network in double precision, and what is found of its first attention."""
    make = {
        "timm": lambda: timm_vit(depth=1),
        "not fused": lambda: timm_vit(False, depth=1),
        "scaled": lambda: timm_vit(depth=1, init_values=1e-5),
        "eigen": lambda: Own(EigenAttention(DIM, HEADS, "-")),
        "shuffled": lambda: Own(Shuffled()),
        "torchvision": lambda: VisionTransformer(SIDE, PATCH, 1, HEADS, DIM, DIM, num_classes=5),
        "talking heads": lambda: timm.create_model(
            "cait_xxs24_224", img_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=2
        ),
    }.get(family, lambda: Own(Odd(family, 2 * DIM if family == "wide" else DIM)))
    model = draw_at_order_one(make()).double().eval()
    taken = take_apart(model, SIDE)
    unit = next(unit for unit in taken.anatomy if unit.kind is Kind.ATTENTION)
    attention, *_ = attentions(taken, taken.pieces[unit.name].nodes) or [None]
    return model, taken, attention


def check(maps, values, output):
    """Each head's maps, up to a common order of its channels."""
    for head in range(HEADS):
        expected = values[head] @ output[head]
        torch.testing.assert_close(maps.values[head] @ maps.output[head], expected)
        assert expected.abs().max() > 1e-3
    assert maps.values.shape == (HEADS, DIM, DIM // HEADS)


def in_order(qkv, projection):
    """timm's order: queries, keys and values, each head by head."""
    values = qkv[2 * DIM :].unflatten(0, (HEADS, -1)).mT
    return values, projection.mT.unflatten(0, (HEADS, -1))


@pytest.mark.parametrize("family", ["timm", "not fused", "torchvision"])
@torch.no_grad()
def test_heads_in_the_usual_order(family):
    model, taken, attention = found(family)
    if family == "torchvision":
        module = next(m for m in model.modules() if isinstance(m, nn.MultiheadAttention))
        weights = module.in_proj_weight, module.out_proj.weight
    else:
        weights = model.blocks[0].attn.qkv.weight, model.blocks[0].attn.proj.weight
    check(head_maps(taken, attention), *in_order(*weights))


@torch.no_grad()
def test_a_scale_after_the_output_belongs_to_it():
    model, taken, attention = found("scaled")
    block = model.blocks[0]
    scaled = block.ls1.gamma[:, None] * block.attn.proj.weight
    assert block.ls1.gamma.std() > 0.1
    check(head_maps(taken, attention), *in_order(block.attn.qkv.weight, scaled))


@torch.no_grad()
def test_weights_that_are_computed():
    model, taken, attention = found("eigen")
    maps = head_maps(taken, attention)
    products = maps.values @ maps.output
    torch.testing.assert_close(products, model.block.values.head_matrices(HEADS))


@torch.no_grad()
def test_heads_and_channels_in_an_order_of_their_own():
    model, taken, attention = found("shuffled")
    width = DIM // HEADS
    into = model.block.into.weight.unflatten(0, (width, HEADS, 3))[:, :, 0]  # (channel, head, dim)
    out = model.block.out_of.weight.unflatten(1, (width, HEADS)).flip(1)  # reads them backwards
    check(head_maps(taken, attention), into.permute(1, 2, 0), out.permute(2, 1, 0))


def test_heads_are_those_of_the_weights():
    """Without one head, what is mixed lacks exactly what its maps say."""
    model, taken, attention = found("timm")
    maps, block = head_maps(taken, attention), model.blocks[0].attn
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 17, DIM, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        query, key, _ = block.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        weights = (query @ key.mT / (DIM // HEADS) ** 0.5).softmax(-1)[0]
        mixed = sum(weights[h] @ x[0] @ maps.values[h] @ maps.output[h] for h in range(HEADS))
        bias = block.proj.weight @ block.qkv.bias[2 * DIM :] + block.proj.bias
        torch.testing.assert_close(block(x)[0], mixed + bias)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        pytest.param(
            "talking heads", "its heads are mixed after the softmax", marks=pytest.mark.proof
        ),
        ("convolution", "its values are computed by conv1d, not a linear map"),
        ("gate", "its mixed values go into mul, not a linear map"),
        ("used twice", "its mixed values are used 2 times"),
        ("positions", "its values do not reach the output map one to one"),
        ("linear attention", "its weights do not come from a softmax over keys"),
    ],
)
def test_what_is_unclear_is_said(family, reason):
    _, taken, attention = found(family)
    with pytest.raises(Unclear, match=reason):
        head_maps(taken, attention)


def test_a_product_that_is_not_square_has_no_eigenvalues():
    class Wider(nn.Module):
        """Attention that returns more channels than it takes."""

        def __init__(self):
            super().__init__()
            self.start, self.value = nn.Conv2d(3, DIM, PATCH, PATCH), nn.Linear(DIM, DIM)
            self.out, self.end = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, 5)

        def forward(self, image):
            x = self.start(image).flatten(2).transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(x, x, self.value(x))
            return self.end(self.out(mixed).mean(1))

    taken = take_apart(Wider().eval(), SIDE)
    (attention,) = (
        a for unit in taken.anatomy for a in attentions(taken, taken.pieces[unit.name].nodes)
    )
    with pytest.raises(Unclear, match="only if it is square, but it maps 8 channels to 16"):
        head_maps(taken, attention)


def test_wide_values_are_fine():
    """What lies between the two maps may be wider than the tokens."""
    _, taken, attention = found("wide")
    assert head_maps(taken, attention).values.shape == (1, DIM, 2 * DIM)
