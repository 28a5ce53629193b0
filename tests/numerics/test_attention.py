import math

import numpy as np
import pytest
import torch

from numerics.naive_attention import statistics
from retinoscope.numerics.attention import (
    AttentionStatistics,
    attention_maps,
    attention_statistics,
    stable_rank,
    value_norm_at_sinks,
)

LINE = (torch.arange(6.0)[:, None] - torch.arange(6.0)).abs()
"""Distances between six positions on a line."""


def of(matrix, **options):
    """The statistics of one matrix, as numbers."""
    found = attention_statistics(torch.as_tensor(matrix)[None, None, None].float(), **options)
    return AttentionStatistics(*(x.item() for x in found))


def test_uniform_weights():
    found = of(torch.full((6, 6), 1 / 6), distance=LINE)
    assert found.entropy == pytest.approx(math.log(6), rel=1e-6)
    assert found.normalised_entropy == pytest.approx(1, rel=1e-6)
    assert found.mutual_information == pytest.approx(0, abs=1e-6)
    assert found.distance == pytest.approx(35 / 18, rel=1e-6)  # (n² − 1) / 3n
    assert found.sink == pytest.approx(1, rel=1e-6)
    assert math.isnan(found.prefix_share)


def test_everybody_looks_at_itself():
    found = of(torch.eye(6), distance=LINE)
    assert found[:3] == (0, 0, 0)
    assert found.mutual_information == pytest.approx(1, rel=1e-6)
    assert found.sink == 1


def test_everybody_looks_at_somebody_else():
    order = [3, 0, 1, 5, 4, 2]
    found = of(torch.eye(6)[order], distance=LINE)
    assert found.entropy == 0
    assert found.mutual_information == pytest.approx(1, rel=1e-6)
    assert found.distance == pytest.approx(np.mean([3, 1, 1, 2, 0, 3]))
    assert found.sink == 1


def test_everybody_looks_at_the_same():
    found = of(torch.eye(6)[[2] * 6], distance=LINE)
    assert found.mutual_information == 0
    assert found.sink == pytest.approx(6e6), "the median is 0: a millionth of the mean counts"
    row = torch.tensor([0.1, 0.1, 0.6, 0.1, 0.05, 0.05])
    alike = of(row.expand(6, 6))
    assert alike.mutual_information == pytest.approx(0, abs=1e-6)
    assert alike.sink == pytest.approx(6)


def test_a_class_token_by_hand():
    """Three tokens, the first without a position: two positions, one apart."""
    matrix = [[0.2, 0.4, 0.4], [0.5, 0.25, 0.25], [0.2, 0.8, 0.0]]
    on = torch.tensor([False, True, True])
    line = torch.tensor([[math.nan] * 3, [math.nan, 0, 7], [math.nan, 7, 0]])
    found = of(torch.tensor(matrix), queries=on, keys=on, distance=line)
    log = math.log
    rows = (-(0.2 * log(0.2) + 0.8 * log(0.4)), -(0.5 * log(0.5) + 0.5 * log(0.25)),
            -(0.2 * log(0.2) + 0.8 * log(0.8)))  # fmt: skip
    assert found.entropy == pytest.approx(sum(rows) / 3, rel=1e-6)
    assert found.normalised_entropy == pytest.approx(sum(rows) / 3 / log(3), rel=1e-6)
    assert found.prefix_share == pytest.approx(0.3, rel=1e-6)
    # Of the positions alone: (½, ½) and (1, 0).
    assert found.distance == pytest.approx((3.5 + 7) / 2, rel=1e-6)
    information = -(0.75 * log(0.75) + 0.25 * log(0.25)) - log(2) / 2
    keys = -(0.75 * log(0.75) + 0.25 * log(0.25))
    expected = information / math.sqrt(log(2) * keys)
    assert found.mutual_information == pytest.approx(expected, rel=1e-6)
    assert found.sink == pytest.approx(1.45 / 0.9, rel=1e-6)


def test_class_attention_has_no_distance():
    one = torch.tensor([[0.5, 0.3, 0.2]])
    found = of(one, queries=torch.tensor([False]), keys=torch.tensor([False, True, True]),
               distance=torch.full((1, 3), math.nan))  # fmt: skip
    assert math.isnan(found.distance)
    assert math.isnan(found.mutual_information)
    assert found.prefix_share == pytest.approx(0.5)
    assert found.entropy == pytest.approx(1.0297, abs=1e-4)


@pytest.mark.parametrize("prefix", [(), (0,), (0, 1, 8), (3, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_naive_twin(prefix, dtype):
    """Tokens before, after and between positions; windows; keys that a mask hides."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(3, 2, 4, 9, 9, dtype=torch.float64)
    logits[..., 0] += 1
    hidden = torch.rand(2, 1, 9, 9) < 0.3
    hidden[..., range(9), range(9)] = False
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).to(dtype)
    on = torch.ones(9, dtype=torch.bool)
    on[list(prefix)] = False
    distance = torch.rand(9, 9, dtype=torch.float64) * 20
    found = attention_statistics(weights, on, on, distance, (~hidden).sum(-1))
    seen = (~hidden).expand(2, 4, 9, 9).numpy()
    expected = statistics(weights.double().numpy(), on.numpy(), on.numpy(), distance.numpy(), seen)
    for name, values in found._asdict().items():
        np.testing.assert_allclose(values, expected[name], rtol=2e-6, atol=2e-6, err_msg=name)
        assert np.ptp(expected[name]) > 0.01 or (name == "prefix_share" and not prefix)


def test_the_order_of_positions_does_not_matter():
    torch.manual_seed(0)
    weights = torch.randn(2, 1, 3, 8, 8).mul(2).softmax(-1)
    on, distance = torch.arange(8) > 1, torch.rand(8, 8)
    order = torch.randperm(8)
    before = attention_statistics(weights, on, on, distance)
    moved = weights[..., order, :][..., order]
    after = attention_statistics(moved, on[order], on[order], distance[order][:, order])
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_images_do_not_see_each_other():
    torch.manual_seed(0)
    weights = torch.randn(7, 2, 3, 8, 8).softmax(-1)
    whole = attention_statistics(weights, distance=torch.ones(8, 8))
    parts = [attention_statistics(w, distance=torch.ones(8, 8)) for w in weights.split(3)]
    for k, one in enumerate(whole):
        again = torch.cat([p[k] for p in parts])
        torch.testing.assert_close(again, one, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_rows_that_are_no_distributions_are_not_measured():
    weights = torch.randn(2, 1, 3, 5, 5).softmax(-1)
    weights[1, 0, 2] *= 1.5
    found = attention_statistics(weights)
    assert found.entropy.isnan().tolist() == [[False] * 3, [False, False, True]]
    assert found.sink.isnan()[1, 2]


def test_almost_all_weight_on_prefix_tokens_keeps_its_digits():
    torch.manual_seed(0)
    logits = torch.randn(1, 1, 1, 9, 9, dtype=torch.float64)
    logits[..., 0] += 16
    weights, on = logits.softmax(-1), torch.arange(9) > 0
    expected = statistics(weights.numpy(), on.numpy(), on.numpy(), np.ones((9, 9)))
    found = attention_statistics(weights.float(), on, on, torch.ones(9, 9))
    assert found.prefix_share.item() > 0.99999
    assert found.distance.item() == pytest.approx(1, rel=1e-5)
    got = found.mutual_information.item()
    assert got == pytest.approx(expected["mutual_information"].item(), rel=1e-4)


def test_stable_rank():
    torch.manual_seed(0)
    some = torch.randn(2, 3, 4, 6, 6).softmax(-1)
    expected = [
        [np.mean([np.linalg.norm(m) ** 2 / np.linalg.norm(m, 2) ** 2 for m in image[:, h].numpy()])
         for h in range(4)] for image in some.double()
    ]  # fmt: skip
    np.testing.assert_allclose(stable_rank(some), expected, rtol=1e-6)
    np.testing.assert_allclose(stable_rank(torch.full((1, 1, 1, 5, 5), 0.2)), 1, rtol=1e-6)
    assert stable_rank(some[:0]).shape == (0, 4)


def test_maps_of_a_query_and_of_all():
    weights = torch.arange(24.0).reshape(1, 2, 1, 3, 4)
    cells = torch.tensor([[-1, 3, 0, 1], [-1, 2, 5, 4]])
    (one,) = attention_maps(weights, cells, (2, 3), 1)[0]
    assert one.tolist() == [[6, 7, 17], [5, 19, 18]]
    (mean,) = attention_maps(weights, cells, (2, 3), None)[0]
    assert mean.tolist() == [[6, 7, 17], [5, 19, 18]]


def test_values_at_sinks_by_hand():
    weights = torch.tensor([[0.1, 0.9], [0.4, 0.6]])[None, None, None]
    values = torch.tensor([[3.0, 4.0], [0.0, 1.0]])[None, None, None]
    assert value_norm_at_sinks(weights, values).item() == pytest.approx(1 / 3)
    both = torch.cat([weights, weights.flip(-1)], 2)
    grouped = value_norm_at_sinks(both, values)
    np.testing.assert_allclose(grouped, [[1 / 3, 5 / 3]], rtol=1e-6)
    torch.testing.assert_close(value_norm_at_sinks(both, 7 * values), grouped)
