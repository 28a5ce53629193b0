import numpy as np
import pytest
import torch

from retinoscope.geometry.moving import Moving, squared_norms, squares
from retinoscope.models.order_one import draw_at_order_one
from run.tiny import build


def direction(tensors, seed):
    draws = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=draws).to(t) for n, t in tensors.items()}


@pytest.fixture
def tensors():
    """Parameters and statistics of a network, with numbers that are easily lost."""
    model = draw_at_order_one(build())
    with torch.no_grad():
        model.head.bias[:5] = torch.tensor([-0.0, torch.inf, torch.nan, 1e-45, -1e38])
    return {n: t for n, t in model.state_dict().items() if t.is_floating_point()}


def bits(tensors):
    return {name: tensor.view(torch.int32).clone() for name, tensor in tensors.items()}


def same_bits(tensors, before):
    return all(torch.equal(tensor.view(torch.int32), before[n]) for n, tensor in tensors.items())


def test_weights_move_as_said_and_come_back_bit_for_bit(tensors):
    before = bits(tensors)
    base = {name: tensor.double() for name, tensor in tensors.items()}
    d, e = direction(tensors, 0), direction(tensors, 1)
    del e["stem.weight"]
    with Moving(tensors, [d, e]) as moving:
        for x, y in ((0.5, -2.0), (3.0, 0.0), (0.0, 1.0)):
            moving.to(x, y)
            for name, tensor in tensors.items():
                expected = base[name] + x * d[name] + (y * e[name] if name in e else 0)
                torch.testing.assert_close(
                    tensor, expected.float(), rtol=1e-6, atol=1e-6, equal_nan=True
                )
        moving.to(0.0, 0.0)
        assert same_bits(tensors, before)
        moving.to(1e30, -1e30)
        assert not same_bits(tensors, before)
    assert same_bits(tensors, before)


def test_weights_come_back_behind_an_error(tensors):
    before = bits(tensors)

    def stopped():
        with Moving(tensors, [direction(tensors, 0)]) as moving:
            moving.to(1.0)
            raise KeyboardInterrupt

    def misled():
        with Moving(tensors, [direction(tensors, 0)]) as moving:
            moving.to(1.0, 2.0)

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert same_bits(tensors, before)
    with pytest.raises(ValueError, match="zip"):
        misled()
    assert same_bits(tensors, before)


def test_minus_zero_stays_where_nothing_moves():
    tensor = torch.tensor([-0.0, 2.0])
    with Moving({"w": tensor}, [{"w": torch.tensor([0.0, torch.inf])}]) as moving:
        moving.to(0.0)
        assert torch.signbit(tensor)[0]
        assert tensor[1] == 2


def test_parameters_that_learn_can_be_moved():
    model = build()
    before = model.head.weight.detach().clone()
    with Moving(dict(model.named_parameters()), [{"head.weight": torch.ones(10, 8)}]) as moving:
        moving.to(2.0)
        torch.testing.assert_close(model.head.weight.detach(), before + 2)
        assert model.head.weight.requires_grad
    assert torch.equal(model.head.weight, before)


def test_only_what_the_directions_name_is_touched():
    tensors = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with Moving(tensors, [{"a": torch.ones(2)}]) as moving:
        tensors["b"] += 5  # somebody else's
        moving.to(1.0)
    assert tensors["b"].tolist() == [5, 5]
    assert tensors["a"].tolist() == [0, 0]


def test_weights_under_two_names_move_once():
    shared = torch.ones(3)
    tensors = {"a": shared, "b": shared}
    with Moving(tensors, [{"a": torch.ones(3), "b": torch.ones(3)}]) as moving:
        moving.to(1.0)
        assert shared.tolist() == [2, 2, 2]
    assert shared.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_other_way_along_mirrored_directions_is_the_same_place(tensors, dtype):
    tensors = {n: t.nan_to_num().to(dtype) for n, t in tensors.items()}
    d, e = direction(tensors, 0), direction(tensors, 1)
    mirrored = [{n: -t for n, t in way.items()} for way in (d, e)]
    for x, y in ((0.3, -0.7), (1.1, 0.0), (-1e-3, 2.5)):
        with Moving(tensors, [d, e]) as moving:
            moving.to(x, y)
            there = {n: t.clone() for n, t in tensors.items()}
        with Moving(tensors, mirrored) as moving:
            moving.to(-x, -y)
            assert all(torch.equal(t, there[n]) for n, t in tensors.items())


def test_norms_anywhere_follow_from_inner_products():
    tensors = draw_at_order_one(build().double()).state_dict()
    tensors = {n: t for n, t in tensors.items() if t.is_floating_point()}
    d, e = direction(tensors, 0), direction(tensors, 1)
    del d["down.weight"]
    products = squares(tensors, [d, e])
    assert products.shape == (len(tensors), 3, 3)
    np.testing.assert_array_equal(products, products.transpose(0, 2, 1))
    for x, y in ((0.0, 0.0), (0.4, -0.9), (-7.0, 2.0)):
        with Moving(tensors, [d, e]) as moving:
            moving.to(x, y)
            expected = [float(tensor.norm() ** 2) for tensor in tensors.values()]
        np.testing.assert_allclose(squared_norms(products, x, y), expected, rtol=1e-10)


def test_a_norm_of_nothing_is_not_negative():
    """Where the way leads through 0, rounding must not make a square negative."""
    weight = {"w": torch.tensor([0.1, 0.7], dtype=torch.float64)}
    products = squares(weight, [{"w": -weight["w"] / 3}])
    assert 0 <= squared_norms(products, 3.0)[0] < 1e-15
    assert squares(weight, []).shape == (1, 1, 1)


def test_a_tensor_with_two_names_moves_once():
    """Directions may know one of its names or both."""
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    state = tied.state_dict()
    before = state["0.weight"].clone()
    both = {"0.weight": torch.ones(2, 2), "1.weight": torch.ones(2, 2)}
    for one in ("0.weight", "1.weight"):
        with Moving(state, [both, {one: torch.eye(2)}]) as moving:
            moving.to(2.0, 3.0)
            torch.testing.assert_close(tied[1].weight.detach(), before + 2 + 3 * torch.eye(2))
        assert torch.equal(tied[0].weight.detach(), before)
