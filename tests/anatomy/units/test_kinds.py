"""Kinds on small networks written here: what mixes what, however it is written."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from retinoscope import dissect

C, H, W = 8, 4, 6


class Residual(nn.Module):
    """A patch embedding, ``x + branch(x)``, and a head; the branch sees tokens (N, H·W, C)."""

    def __init__(self, branch, maps=False):
        super().__init__()
        self.stem, self.fc = nn.Conv2d(3, C, 4, 4), nn.Linear(C, 5)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.tokens, self.wide = nn.Linear(H * W, H * W), nn.Linear(C, 4 * C)
        self.narrow, self.conv = nn.Linear(4 * C, C), nn.Conv2d(C, C, 3, padding=1)
        self.two = nn.Linear(C, 2 * C)
        self.bias = nn.Parameter(torch.randn(1, H * W, H * W))
        self.branch, self.maps = branch, maps

    def forward(self, x):
        x = self.stem(x)
        if not self.maps:
            x = x.flatten(2).transpose(1, 2)
        x = x + self.branch(self, x)
        return self.fc(x.mean((2, 3)) if self.maps else x.mean(1))


def qkv(net, x):
    return net.qkv(x).chunk(3, -1)


def fused(net, x):
    return net.out(F.scaled_dot_product_attention(*qkv(net, x)))


def softmax_and_matmul(net, x):
    q, k, v = qkv(net, x)
    return net.out(((q @ k.transpose(-2, -1)) / math.sqrt(C)).softmax(-1) @ v)


def einsum(net, x):
    q, k, v = qkv(net, x)
    weights = torch.einsum("bqc,bkc->bqk", q, k).softmax(-1)
    return net.out(torch.einsum("bqk,bkc->bqc", weights, v))


def heads_and_bias(net, x):
    q, k, v = net.qkv(x).reshape(-1, H * W, 3, 2, C // 2).permute(2, 0, 3, 1, 4).unbind(0)
    weights = (q @ k.transpose(-2, -1) + net.bias.unsqueeze(1)).softmax(-1)
    return net.out((weights @ v).transpose(1, 2).reshape(-1, H * W, C))


def softmax_by_hand(net, x):
    q, k, v = qkv(net, x)
    weights = (q @ k.transpose(-2, -1)).exp()
    return net.out((weights / weights.sum(-1, keepdim=True)) @ v)


def gated_positional(net, x):
    q, k, v = qkv(net, x)
    gate = net.bias.mean().sigmoid()
    weights = (1 - gate) * (q @ k.transpose(-2, -1)).softmax(-1) + gate * net.bias.softmax(-1)
    return net.out(weights @ v)


def windowed(net, x):
    x = x.reshape(-1, 2, H // 2, 2, W // 2, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, H * W // 4, C)
    x = softmax_and_matmul(net, x)
    return x.reshape(-1, 2, 2, H // 2, W // 2, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, H * W, C)


def linear_attention(net, x):
    q, k, v = (t.relu() for t in qkv(net, x))
    summary = k.transpose(-2, -1) @ v
    return net.out((q @ summary) / (q @ k.sum(1).unsqueeze(-1) + 1e-6))


def factorised(net, x):
    q, k, v = qkv(net, x)
    return net.out(q @ (k.softmax(1).transpose(-2, -1) @ v))


def separable(net, x):
    score, k, v = qkv(net, x)
    context = (score[..., :1].softmax(1) * k).sum(1, keepdim=True)
    return net.out(v.relu() * context)


def over_channels(net, x):
    q, k, v = qkv(net, x)
    weights = (q.transpose(-2, -1) @ k).softmax(-1)
    return net.out((weights @ v.transpose(-2, -1)).transpose(-2, -1))


def over_channels_fused(net, x):
    q, k, v = (t.transpose(-2, -1) for t in qkv(net, x))
    return net.out(F.scaled_dot_product_attention(q, k, v).transpose(-2, -1))


def over_channels_cosine(net, x):
    q, k, v = qkv(net, x)
    q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    return net.out(((q.transpose(-2, -1) @ k).softmax(-1) @ v.transpose(-2, -1)).transpose(-2, -1))


def token_mixing(net, x):
    return net.tokens(x.transpose(1, 2)).relu().transpose(1, 2)


def spatial_gate(net, x):
    """gMLP: one half gates the other, mixed over positions."""
    u, v = net.two(x).chunk(2, -1)
    return net.out(u * net.tokens(v.transpose(1, 2)).transpose(1, 2))


def mlp(net, x):
    return net.narrow(F.gelu(net.wide(x)))


def mlp_as_einsum(net, x):
    return torch.einsum("bnc,dc->bnd", net.wide(x).relu(), net.narrow.weight)


def glu(net, x):
    return net.out(F.glu(net.two(x)))


def conv_in_mlp(net, x):
    maps = x.transpose(1, 2).unflatten(2, (H, W))
    return net.out(F.gelu(net.conv(maps)).flatten(2).transpose(1, 2))


def pooling(net, x):
    maps = x.transpose(1, 2).unflatten(2, (H, W))
    return (F.avg_pool2d(maps, 3, 1, 1) - maps).flatten(2).transpose(1, 2)


def softmax_gate_over_channels(net, x):
    return net.out(x * net.out(x).softmax(-1))


def softmax_over_branches(net, x):
    branches = torch.stack([net.out(x), net.narrow(net.wide(x))], 1)
    weights = branches.mean((2, 3)).softmax(1)
    return (branches * weights[:, :, None, None]).sum(1)


def squeeze_and_excite(net, x):
    return net.out(x * net.out(x.mean(1, keepdim=True)).sigmoid())


def nothing_learned(net, x):
    return x.roll(1, 1)


@pytest.mark.parametrize(
    ("branch", "kind"),
    [
        *((f, "attention") for f in (
            fused, softmax_and_matmul, einsum, heads_and_bias, softmax_by_hand, gated_positional,
            windowed, linear_attention, factorised, separable,
        )),
        *((f, "channel_attention") for f in (
            over_channels, over_channels_fused, over_channels_cosine,
        )),
        *((f, "token_mlp") for f in (token_mixing, spatial_gate)),
        *((f, "mlp") for f in (
            mlp, mlp_as_einsum, glu, softmax_gate_over_channels, softmax_over_branches,
            squeeze_and_excite,
        )),
        (conv_in_mlp, "conv"),
        (pooling, "pool"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_kind_of_a_branch(branch, kind):
    anatomy = dissect(Residual(branch), (4 * H, 4 * W))
    assert [unit.kind for unit in anatomy] == ["stem", kind, "head"]
    assert anatomy.units[1].residual
    assert str(anatomy.units[1].grid) == f"{H}×{W}"


def test_what_does_no_work_is_no_unit():
    anatomy = dissect(Residual(nothing_learned), (4 * H, 4 * W))
    assert [unit.kind for unit in anatomy] == ["stem", "head"]


class Plain(nn.Module):
    def __init__(self, *body):
        super().__init__()
        self.body, self.fc = nn.Sequential(*body), nn.LazyLinear(5)
        self(torch.zeros(1, 3, 32, 32))

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


def cbr(i, o, k=3, s=1, g=1, act=True):
    parts = [nn.Conv2d(i, o, k, s, k // 2, groups=g), nn.BatchNorm2d(o)]
    return [*parts, nn.ReLU6()] if act else parts


def test_plain_chains_are_cut_at_every_map():
    model = Plain(*cbr(3, 8), *cbr(8, 8), nn.MaxPool2d(2), *cbr(8, 16), *cbr(16, 16, 1)).eval()
    anatomy = dissect(model, 32)
    assert [unit.kind for unit in anatomy] == ["stem", "conv", "pool", "conv", "mlp", "head"]
    assert anatomy.sketch == "C|P↓CM"


def test_an_inverted_bottleneck_without_a_skip_is_one_unit():
    bottleneck = [*cbr(8, 32, 1), *cbr(32, 32, 3, 2, 32), *cbr(32, 12, 1, act=False)]
    anatomy = dissect(Plain(*cbr(3, 8), *bottleneck, *cbr(12, 12)).eval(), 32)
    assert anatomy.sketch == "C↓C"
    assert [unit.channels for unit in anatomy] == [8, 12, 12, 5]


def test_subsampling_by_reshape_is_a_convolution():
    """A linear map over 2 × 2 blocks is a strided convolution, however the blocks were made."""

    class Merge(nn.Module):
        def __init__(self, slices):
            super().__init__()
            self.stem, self.fc = nn.Conv2d(3, C, 4, 4), nn.Linear(C, 5)
            self.reduce, self.slices = nn.Linear(4 * C, C), slices

        def forward(self, x):
            x = self.stem(x).permute(0, 2, 3, 1)
            x = x + torch.tanh(x @ x.new_ones(C, C) * self.fc.bias.sum()) + self.fc.weight.sum()
            if self.slices:
                x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
            else:
                x = (
                    x.unflatten(2, (-1, 2))
                    .unflatten(1, (-1, 2))
                    .permute(0, 1, 3, 5, 2, 4)
                    .flatten(3)
                )
            return self.fc(self.reduce(x).mean((1, 2)))

    for slices in (True, False):
        last = dissect(Merge(slices), (32, 48)).units[-2]
        assert (last.kind, last.subsamples, str(last.grid)) == ("conv", True, "4×6")
