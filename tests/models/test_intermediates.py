import pytest
import torch

from retinoscope.models.intermediates import IntermediateForm


def test_tokens_become_maps_row_by_row():
    """One image, a prefix token, a grid of 2 × 3 and two channels, the second a hundred higher."""
    tokens = torch.tensor([[-1.0, 0, 1, 2, 3, 4, 5]]).unsqueeze(-1) + torch.tensor([0.0, 100])
    maps, prefix = IntermediateForm(return_prefix_tokens=True)(tokens, 1, (2, 3))
    assert maps[0, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert maps[0, 1].tolist() == [[100, 101, 102], [103, 104, 105]]
    assert prefix.tolist() == [[[-1, 99]]]
    assert IntermediateForm("NLC")(tokens, 1, (2, 3)).equal(tokens[:, 1:])
    assert IntermediateForm()(tokens[:, 1:], 0, (2, 3)).equal(maps)


def test_other_forms_are_refused():
    with pytest.raises(ValueError, match="NCHW or NLC; output_fmt='NHWC' was asked for"):
        IntermediateForm("NHWC")
