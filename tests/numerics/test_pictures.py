import warnings

import numpy as np
import torch

from retinoscope.numerics.pictures import at_one_size, liveliest, spectra, thumbnails


def test_the_spectrum_of_a_cosine_has_two_peaks():
    x = torch.arange(8.0)
    maps = torch.cos(2 * torch.pi * 2 * x / 8).expand(1, 1, 8, 8)
    found = spectra(maps)[0]
    peaks = {tuple(place) for place in (found == found.max()).nonzero().tolist()}
    assert peaks == {(4, 2), (4, 6)}
    assert found[4, 4] == 0


def test_the_map_that_varies_most_from_0_to_1():
    maps = torch.stack([torch.ones(2, 3), torch.arange(6.0).reshape(2, 3)])[None]
    np.testing.assert_allclose(liveliest(maps)[0], np.arange(6).reshape(2, 3) / 5)


def test_no_image_gives_no_picture_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert liveliest(torch.zeros(0, 4, 3, 3)).shape == (0, 3, 3)
        assert thumbnails(torch.zeros(0, 3, 300, 150)).shape == (0, 128, 64, 3)


def test_thumbnails_are_stretched_and_reduced():
    images = torch.linspace(-2, 2, 3 * 4 * 4).reshape(1, 3, 4, 4)
    found = thumbnails(images)
    assert found.shape == (1, 4, 4, 3)
    assert (found.min(), found.max()) == (0, 1)
    torch.testing.assert_close(thumbnails(5 * images - 1), found)
    halves = thumbnails(torch.rand(2, 3, 8, 8), side=4)
    assert halves.shape == (2, 4, 4, 3)
    grey = thumbnails(torch.rand(1, 1, 4, 4))
    assert torch.equal(grey[..., 0], grey[..., 2])


def test_one_size_repeats_pixels_and_reduces_what_is_too_large():
    small, large = np.array([[1.0, 2.0]]), np.arange(8.0).reshape(2, 4)
    both = at_one_size([small, large])
    assert both[0].tolist() == [[1, 1, 2, 2]] * 2
    assert both[1].tolist() == large.tolist()
    assert at_one_size([large], side=2)[0].tolist() == [[0, 2]]
