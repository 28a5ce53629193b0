import numpy as np
import pytest

from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Preprocessing, image_size


def test_a_single_number_is_a_square():
    assert image_size(32) == image_size((32, 32)) == image_size(np.int64(32)) == (32, 32)
    assert image_size([48, 32]) == (48, 32)
    assert Preprocessing(size=32).size == (32, 32)


@pytest.mark.parametrize("size", [0, (0, 32), -4, (32,), (1, 2, 3), "32", 32.0, True])
def test_what_is_no_size_is_refused_for_what_it_is(size):
    with pytest.raises(
        WrongInput, match=r"is not an image size.*--size 224x160.*size=\(224, 160\)"
    ):
        image_size(size)


def test_the_crop_is_blamed_only_for_itself():
    with pytest.raises(WrongInput, match=r"crop_pct=….*got 1.5"):
        Preprocessing(crop_pct=1.5)
    with pytest.raises(WrongInput) as caught:
        Preprocessing(size=(0, 0))
    assert "crop" not in str(caught.value)
