import numpy as np
import pytest
import torch
from torch import nn

from retinoscope.numerics.consistency import (
    by_distance,
    centre_of,
    centre_products,
    correlation_length,
    correlation_with_centre,
)


def impulses(side):
    """Images ±e for every pixel e of every channel.

    Their covariance is a multiple of the identity, exactly: for linear maps, these few images stand
    for all images with independent pixels.
    """
    eye = torch.eye(3 * side * side, dtype=torch.float64).reshape(-1, 3, side, side)
    return torch.cat([eye, -eye])


def naive(maps):
    """The covariance of every point with the centre, averaged over channels, by numpy."""
    _, channels, height, width = maps.shape
    row, column = centre_of(height, width)
    found = np.zeros((2, height, width))
    for c, y, x in np.ndindex(channels, height, width):
        both = np.cov(maps[:, c, y, x], maps[:, c, row, column])
        found[:, y, x] += (both[0, 1] / channels, both[0, 0] / channels)
    return found


@pytest.mark.parametrize("layout", ["NCHW", "tokens"])
@pytest.mark.parametrize("shape", [(5, 6), (3, 3)])
def test_equals_numpy_in_any_layout(layout, shape):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(7, 4, *shape, generator=generator, dtype=torch.float64).cumsum(2) + 3
    if layout == "tokens":  # a class token before, channels last
        tokens = torch.cat([torch.ones(7, 1, 4), maps.flatten(2).mT], 1)
        maps = tokens[:, 1:].mT.unflatten(2, shape)
    found = np.stack([sums.numpy() for sums in centre_products(maps)]) / 6
    np.testing.assert_allclose(found, naive(maps.numpy()), rtol=1e-12)


def test_one_convolution_reaches_exactly_two_points():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1).double()
    with torch.no_grad():
        products, squares = centre_products(conv(impulses(9)))
    correlation = correlation_with_centre(products.numpy(), squares.numpy())
    curve = by_distance(np.abs(correlation))
    assert curve[0] == pytest.approx(1)
    assert (curve[1:3] > 0.01).all()
    assert (curve[3:] < 1e-14).all()
    # The known answer: the kernel's correlation with itself, moved by one row.
    weight = conv.weight.detach().numpy()
    expected = (weight[:, :, 1:] * weight[:, :, :-1]).sum() / (weight**2).sum()
    assert correlation[3, 4] == pytest.approx(expected, rel=1e-9)


def test_groups_of_images_are_unbiased():
    """The mean over many small groups is the covariance that the images were drawn with."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3000, 4, 2, 1, 3, generator=generator)  # groups of 4 images
    noise[..., 0] = 0.6 * noise[..., 1] + 0.8 * noise[..., 0]
    sums = [torch.stack(centre_products(group + 5)) for group in noise]
    products, squares = torch.stack(sums).double().mean(0)[:, 0] / 3
    # The standard error of a variance over 3000 · 3 · 2 degrees of freedom is √(2/18000) = 0.0105.
    assert products.tolist() == pytest.approx([0.6, 1, 0], abs=0.05)
    assert squares.tolist() == pytest.approx([1, 1, 1], abs=0.05)


def test_a_large_mean_costs_no_precision():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(64, 8, 5, 5, generator=generator)
    plain, moved = (torch.stack(centre_products(m)) for m in (maps, maps + 100))
    # 100 ± 1 has four bits less than 1 in single precision… of 24.
    torch.testing.assert_close(moved, plain, rtol=1e-4, atol=1e-3)


def test_distances_are_those_of_a_square_kernel():
    rows, columns = np.indices((7, 6))
    expected = np.maximum(np.abs(rows - 3), np.abs(columns - 3))
    for distance in range(4):
        assert by_distance((expected == distance).astype(float))[distance] == 1
    assert len(by_distance(np.zeros((7, 6)))) == 4


def test_lengths():
    exponential = np.exp(-np.arange(9) / 3)
    assert correlation_length(exponential) == (pytest.approx(3), True)
    assert correlation_length(np.array([1.0, 0.0])) == (pytest.approx(1 - 1 / np.e), True)
    assert correlation_length(np.full(5, 0.9)) == (4.0, False)


def test_points_that_do_not_vary():
    squares = np.ones((3, 3))
    squares[0, 0] = 0
    assert correlation_with_centre(np.zeros((3, 3)), squares)[0, 0] == 0
    squares[1, 1] = 0
    assert np.isnan(correlation_with_centre(np.zeros((3, 3)), squares)).all()
