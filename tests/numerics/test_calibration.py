import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.calibration import (
    authors_calibration_error,
    bin_sums,
    expected_calibration_error,
    signed_calibration_error,
)

SHARES = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1.0]), st.integers(0, 15).map(lambda b: b / 15)
)
ANSWERS = st.lists(st.tuples(SHARES, st.booleans()), min_size=1, max_size=60)


def tensors(answers):
    confidence, correct = zip(*answers, strict=True)
    return torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct)


def naive(answers, bins, signed=False):
    total = 0.0
    for b in range(1, bins + 1):
        inside = [
            (c, r) for c, r in answers if (b - 1) / bins < c <= b / bins or (b == 1 and c == 0)
        ]
        if inside:
            confidence = math.fsum(c for c, _ in inside) / len(inside)
            accuracy = sum(r for _, r in inside) / len(inside)
            apart = confidence - accuracy
            total += len(inside) / len(answers) * (apart if signed else abs(apart))
    return total


def naive_of_the_authors(answers, bins):
    counted = [(c, r) for c, r in answers if c > 0]
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        right = [r for c, r in counted if low < c <= high]
        if right:
            confidence = math.fsum(c for c, _ in answers if low <= c < high) / len(right)
            total += len(right) / len(counted) * abs(sum(right) / len(right) - confidence)
    return total


def test_known_answer():
    confidence = torch.tensor([0.125, 0.375, 0.625, 0.875, 0.875, 0.875])
    correct = torch.tensor([False, True, True, True, False, False])
    sums = bin_sums(confidence, correct, bins=2)
    assert sums.dtype == torch.float64
    assert sums.tolist() == [[2, 4], [0.5, 3.25], [1, 2]]
    assert expected_calibration_error(sums) == pytest.approx((0.5 + 1.25) / 6)
    assert signed_calibration_error(sums) == pytest.approx((-0.5 + 1.25) / 6)


def test_edges_belong_to_the_bin_below_and_zero_to_the_first():
    confidence = torch.tensor([0.0, 0.25, 0.25 + 1e-12, 0.5, 0.75, 1.0], dtype=torch.float64)
    sums = bin_sums(confidence, torch.zeros(6), bins=4)
    assert sums[0].tolist() == [2, 2, 1, 1]


def test_a_saturated_network():
    """Every confidence is 1 and 98 of 10000 are right: the authors' code gives the accuracy."""
    confidence, correct = torch.ones(10_000), torch.arange(10_000) < 98
    sums = bin_sums(confidence, correct)
    assert expected_calibration_error(sums) == pytest.approx(0.9902)
    assert signed_calibration_error(sums) == pytest.approx(0.9902)
    assert authors_calibration_error(confidence, correct) == pytest.approx(0.0098)


def test_confidences_on_the_upper_edge_move_up_with_the_authors():
    """Two on the edge of two bins: counted below, their confidence is added above."""
    confidence, correct = torch.tensor([0.5, 0.5, 0.75]), torch.tensor([True, False, True])
    assert authors_calibration_error(confidence, correct, bins=2) == pytest.approx(
        abs(1 - 0) / 3 + abs(1 - 1.75) / 3
    )
    assert expected_calibration_error(bin_sums(confidence, correct, bins=2)) == pytest.approx(
        0.25 / 3
    )


def test_a_calibrated_network_has_no_error():
    confidence = torch.tensor([0.75] * 4 + [0.5] * 2)
    correct = torch.tensor([True, True, True, False, True, False])
    assert expected_calibration_error(bin_sums(confidence, correct)) == 0
    assert authors_calibration_error(confidence, correct) == 0


@settings(deadline=None, max_examples=100)
@given(ANSWERS, st.integers(1, 20))
def test_equals_a_loop(answers, bins):
    confidence, correct = tensors(answers)
    sums = bin_sums(confidence, correct, bins)
    # Sums of 60 doubles in another order.
    assert expected_calibration_error(sums) == pytest.approx(naive(answers, bins), abs=1e-12)
    assert signed_calibration_error(sums) == pytest.approx(naive(answers, bins, True), abs=1e-12)
    if (confidence > 0).any():
        found = authors_calibration_error(confidence, correct, bins)
        assert found == pytest.approx(naive_of_the_authors(answers, bins), abs=1e-12)


def test_agrees_with_torchmetrics():
    """Away from the edges: torchmetrics' bins are [a, b), with a bin of its own for exactly 1."""
    peer = pytest.importorskip("torchmetrics")
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 10, generator=generator)
    labels = torch.randint(10, (2000,), generator=generator)
    labels = torch.where(torch.rand(2000, generator=generator) < 0.6, logits.argmax(1), labels)
    probabilities = logits.softmax(1)
    confidence, predicted = probabilities.max(1)
    expected = peer.functional.calibration_error(
        probabilities, labels, task="multiclass", num_classes=10, n_bins=15, norm="l1"
    )
    found = expected_calibration_error(bin_sums(confidence, predicted == labels))
    assert found > 0.05
    # The peer adds 2000 numbers in float32.
    assert found == pytest.approx(expected.item(), abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(ANSWERS, st.randoms(use_true_random=False), st.integers(1, 10))
def test_invariant_to_batches_and_order(answers, random, batch):
    whole = bin_sums(*tensors(answers))
    shuffled = random.sample(answers, len(answers))
    batches = [shuffled[i : i + batch] for i in range(0, len(shuffled), batch)]
    added = torch.stack([bin_sums(*tensors(part)) for part in batches]).sum(0)
    # Sums in another order; counts are exact.
    torch.testing.assert_close(added, whole, rtol=1e-12, atol=1e-12)
    assert torch.equal(added[[0, 2]], whole[[0, 2]])


def test_half_precision_and_floats_for_correctness():
    confidence, correct = torch.tensor([0.75, 0.5]), torch.tensor([1.0, 0.0])
    exact = bin_sums(confidence, correct.bool())
    assert torch.equal(bin_sums(confidence.bfloat16(), correct), exact)


def test_not_a_number_shows():
    sums = bin_sums(torch.tensor([0.5, math.nan]), torch.tensor([True, False]))
    assert math.isnan(expected_calibration_error(sums))


def test_what_cannot_be_binned():
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3,\)"):
        bin_sums(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"must both have shape \(N,\); got \(2, 1\)"):
        bin_sums(torch.ones(2, 1), torch.ones(2, 1))
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        bin_sums(torch.ones(2), torch.ones(2), bins=0)
    for error in (expected_calibration_error, signed_calibration_error):
        with pytest.raises(ValueError, match="of zero images"):
            error(bin_sums(torch.ones(0), torch.ones(0)))
    with pytest.raises(ValueError, match="of zero images"):
        authors_calibration_error(torch.zeros(2), torch.ones(2))
