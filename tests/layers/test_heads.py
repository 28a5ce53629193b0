from typing import get_args

import pytest
import torch
from timm.layers import ClassifierHead
from torch.nn.functional import adaptive_avg_pool2d, linear, relu

from retinoscope.layers.heads import HeadKind, make_head
from retinoscope.models.order_one import draw_at_order_one

KINDS = get_args(HeadKind)
SMALL = {"hidden": 12, "side": 2}


def maps(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def head_of(kind, channels=6, classes=5, **options):
    return draw_at_order_one(make_head(kind, channels, classes, **SMALL | options)).eval()


def test_pooled_heads_by_hand():
    x = maps(3, 6, 4, 5)
    vectors = {
        "gap": x.mean((2, 3)),
        "max": x.amax((2, 3)),
        "median": x.flatten(2).sort(dim=2, descending=True).values[:, :, 20 // 2 - 1],
        "gap_clip": 2 / (1 + torch.exp(-x.mean((2, 3)) / 2)) - 1,
        "catavgmax": torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1),
    }
    for kind, expected in vectors.items():
        head = head_of(kind)
        torch.testing.assert_close(head(x, pre_logits=True), expected)
        torch.testing.assert_close(head(x), linear(expected, head.fc.weight, head.fc.bias))


def test_bn_relu_gap_by_hand():
    x, head = maps(3, 6, 4, 5), head_of("bn_relu_gap")
    torch.testing.assert_close(head(x, pre_logits=True), relu(head.neck[0](x)).mean((2, 3)))
    assert not torch.allclose(head(x), head_of("gap")(x))


@pytest.mark.parametrize(("kind", "side"), [("mlp", 2), ("gap_mlp", 1)])
def test_hidden_layers_by_hand(kind, side):
    x, head = maps(3, 6, 4, 5), head_of(kind)
    first, second = head.neck.fc1, head.neck.fc2
    hidden = relu(linear(adaptive_avg_pool2d(x, side).flatten(1), first.weight, first.bias))
    hidden = relu(linear(hidden, second.weight, second.bias))
    torch.testing.assert_close(head(x, pre_logits=True), hidden)
    torch.testing.assert_close(head(x), linear(hidden, head.fc.weight, head.fc.bias))


def test_hidden_layers_of_the_paper():
    """7 × 7 points → 4096 → 4096 → classes, half of each hidden layer dropped."""
    with torch.device("meta"):
        head = make_head("mlp", 512, 100)
    assert [tuple(p.shape) for p in head.parameters() if p.ndim == 2] == [
        (4096, 512 * 49),
        (4096, 4096),
        (100, 4096),
    ]
    assert (head.neck.drop1.p, head.drop.p) == (0.5, 0.5)
    assert make_head("gap", 4, 2).drop.p == 0


def test_dropout_of_both_hidden_layers_in_training_only():
    x, head = maps(3, 6, 4, 4), head_of("mlp", drop_rate=0.9)
    assert torch.equal(head(x), head(x))
    head.train()
    assert (head(x, pre_logits=True) == 0).float().mean() > 0.7
    assert not torch.equal(head(x), head(x))


@pytest.mark.parametrize("kind", KINDS)
def test_resets_like_timms_head(kind):
    x, head = maps(2, 6, 4, 4), head_of(kind)
    before = head(x, pre_logits=True)
    head.reset(3)
    assert head(x).shape == (2, 3)
    assert not head.training
    assert torch.equal(head(x, pre_logits=True), before)  # the neck is what it was
    head.reset(0)
    assert torch.equal(head(x), before)
    head.reset(0, "")
    assert torch.equal(head(x), x)
    head.reset(7, "max", dtype=torch.float64)
    peer = ClassifierHead(6, 7, pool_type="max").double()
    peer.fc.load_state_dict(head.fc.state_dict())
    assert torch.equal(head(x.double()), peer(x.double()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [1, 2, 9])
def test_any_size_of_maps(kind, side):
    assert head_of(kind)(maps(2, 6, side, side + 1)).isfinite().all()
    assert head_of(kind)(maps(2, 6, side, side)).shape == (2, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_exports_trains_and_runs_in_half_precision(kind):
    x, head = maps(2, 6, 4, 4), head_of(kind)
    exported = torch.export.export(head, (x,)).module()
    torch.testing.assert_close(exported(x), head(x))
    head.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
    assert head.eval().bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_mistakes_say_what_there_is():
    with pytest.raises(ValueError, match=r"no head 'cls'. It is one of: gap, mlp, .*timm's: avg"):
        make_head("cls", 4, 2)
    with pytest.raises(ValueError, match=r"hidden ≥ 1 and side ≥ 1; got 0 and 7"):
        make_head("mlp", 4, 2, hidden=0)
    head = make_head("gap", 4, 2)
    with pytest.raises(
        ValueError, match=r"not pooled cannot be classified into 2 classes.*0 classes"
    ):
        head.reset(2, "")
    assert head(torch.zeros(1, 4, 2, 2)).shape == (1, 2)  # refused, and nothing changed
