import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from retinoscope.train.sam import climbed, unrecorded


def test_the_worst_place_of_a_parabola_is_known():
    """At w = (3, 4) the gradient of |w|²/2 is w itself, so 5 away from it lies 2 w."""
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    (w.square().sum() / 2).backward()
    with climbed([w], 5.0):
        torch.testing.assert_close(w.detach(), torch.tensor([6.0, 8.0]))
        assert w.grad is None
        (w.square().sum() / 2).backward()
    assert w.tolist() == [3.0, 4.0]
    torch.testing.assert_close(w.grad, torch.tensor([6.0, 8.0]))


def test_a_step_is_that_of_two_steps_by_hand(order_one):
    radius, rate = 0.05, 0.1
    net = order_one("test_resnet", num_classes=5).double().train()
    twin = timm.create_model("test_resnet", num_classes=5).double().train()
    twin.load_state_dict(net.state_dict())
    x, y = torch.rand(8, 3, 32, 32, dtype=torch.float64), torch.arange(8) % 5

    cross_entropy(twin(x), y).backward()
    first = [p.grad.clone() for p in twin.parameters()]
    length = sum(g.pow(2).sum() for g in first).sqrt()
    old = [p.detach().clone() for p in twin.parameters()]
    with torch.no_grad():
        for p, g in zip(twin.parameters(), first, strict=True):
            p += radius * g / length
    twin.zero_grad()
    cross_entropy(twin(x), y).backward()
    with torch.no_grad():
        for p, o in zip(twin.parameters(), old, strict=True):
            p.copy_(o - rate * p.grad)

    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    cross_entropy(net(x), y).backward()
    plain = [p.grad.clone() for p in net.parameters()]
    with climbed(net.parameters(), radius), unrecorded(net):
        cross_entropy(net(x), y).backward()
    optimiser.step()
    for ours, theirs, flat in zip(net.parameters(), twin.parameters(), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
        del flat
    assert any(
        not torch.allclose(p.grad, g) for p, g in zip(net.parameters(), plain, strict=True)
    ), "the gradient of the worst place must differ from that of the first"


def test_where_there_is_no_slope_nothing_moves():
    w = nn.Parameter(torch.ones(3))
    (w * 0).sum().backward()
    with climbed([w], 0.5):
        assert w.tolist() == [1.0, 1.0, 1.0]


def test_statistics_stay_while_unrecorded():
    net = nn.Sequential(nn.BatchNorm2d(3)).train()
    x = torch.rand(4, 3, 5, 5)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with unrecorded(net):
        inside = net(x)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    torch.testing.assert_close(inside, net(x))
    assert net[0].num_batches_tracked == 1


def test_an_error_within_leaves_the_weights_as_they_were():
    w = nn.Parameter(torch.tensor([3.0]))
    w.square().sum().backward()
    with pytest.raises(RuntimeError, match="stop"), climbed([w], 1.0):
        raise RuntimeError("stop")
    assert w.tolist() == [3.0]
