import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.spread import spatial_deviation, spatial_variance


def test_known_answer():
    maps = torch.tensor([[[[0.0, 2.0], [4.0, 6.0]], [[5.0, 5.0], [5.0, 5.0]]]])
    assert spatial_variance(maps).item() == pytest.approx((20 / 3 + 0) / 2)
    assert spatial_deviation(maps).item() == pytest.approx(((20 / 3) ** 0.5 + 0) / 2)


def test_white_noise_has_its_own_variance():
    maps = 3 * torch.randn(50, 50, 16, 16, generator=torch.Generator().manual_seed(0))
    assert spatial_variance(maps).mean().item() == pytest.approx(9, rel=0.01)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(2, 6), st.booleans())
def test_equals_torch_var_in_any_layout(images, channels, height, width, last):
    maps = torch.randn(images, channels, height, width, dtype=torch.float64)
    stored = maps.contiguous(memory_format=torch.channels_last) if last else maps
    expected = maps.flatten(2).var(-1).mean(1)
    torch.testing.assert_close(spatial_variance(stored), expected, rtol=1e-12, atol=1e-12)
    expected = maps.flatten(2).std(-1).mean(1)
    torch.testing.assert_close(spatial_deviation(stored), expected, rtol=1e-12, atol=1e-12)


def test_invariant_to_an_offset_and_quadratic_in_scale():
    maps = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    base = spatial_variance(maps)
    torch.testing.assert_close(spatial_variance(maps + 100), base, rtol=1e-9, atol=0)
    torch.testing.assert_close(spatial_variance(-2 * maps), 4 * base)
    torch.testing.assert_close(spatial_deviation(100 - 2 * maps), 2 * spatial_deviation(maps))
