import numpy as np
import pytest
import torch

from retinoscope.numerics.tokens import (
    entry_step,
    largest_entries,
    median_entry,
    position_norms,
    positive_median,
    quantiles_of_sorted,
)

TOKENS = torch.randn(3, 17, 6, generator=torch.Generator().manual_seed(0))
MAPS = TOKENS[:, 1:].mT.unflatten(2, (4, 4))
"""Maps as a transformer stores them: channels are adjacent in memory."""


@pytest.mark.parametrize("maps", [MAPS, MAPS.contiguous()])
def test_equal_numpy_however_they_are_stored(maps):
    dense = maps.double().numpy()
    norms = position_norms(maps)
    expected = np.linalg.norm(dense, axis=1).reshape(3, 16)
    np.testing.assert_allclose(norms, expected, rtol=1e-6)
    shares = (0.05, 0.25, 0.5, 0.95, 1)
    quantiles = quantiles_of_sorted(np.sort(norms.numpy(), axis=1), shares)
    np.testing.assert_allclose(quantiles, np.quantile(expected, shares, axis=1).T, rtol=1e-6)
    np.testing.assert_allclose(largest_entries(maps), np.abs(dense).max((2, 3)), rtol=1e-6)
    medians = np.median(np.abs(dense).reshape(3, -1), axis=1)
    np.testing.assert_allclose(median_entry(maps), medians, rtol=1e-6)


def test_prefix_tokens_may_have_the_largest_entry():
    prefix = TOKENS[:, :1] * torch.tensor([1.0, -100, 1, 1, 1, 1])
    found = largest_entries(MAPS, prefix)
    np.testing.assert_allclose(found[:, 1], prefix[:, 0, 1].abs())
    torch.testing.assert_close(found[:, 0], torch.maximum(MAPS.abs().amax((2, 3))[:, 0],
                                                         prefix[:, 0, 0].abs()))  # fmt: skip


def test_medians_leave_zeros_out():
    rows = np.array([[0, 0, 0, 1, 2, 9], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 4.0]])
    assert positive_median(rows).tolist() == [2, 3.5, 4]
    relu = torch.randn(4, 3, 5, 5).clamp_min(0)
    expected = [np.median(image[image > 0]) for image in relu]
    np.testing.assert_allclose(median_entry(relu), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(192, 8, 8), (16, 32, 32), (2048, 7, 7), (3, 224, 224)])
def test_the_subset_is_small_and_has_all_channels(shape):
    step, total = entry_step(shape), np.prod(shape)
    some = np.arange(0, total, step)
    assert len(some) <= 512
    channels = np.unique(some // (shape[1] * shape[2]))
    assert len(channels) >= min(shape[0], 400)
    assert len(np.unique(some % shape[2])) == shape[2], "all columns"


def test_the_median_of_a_subset_is_near_that_of_all():
    maps = torch.randn(16, 64, 14, 14, generator=torch.Generator().manual_seed(1))
    found = median_entry(maps).mean()
    assert found == pytest.approx(0.6745, abs=0.036)  # of half a normal distribution
