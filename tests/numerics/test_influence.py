import math

import torch

from retinoscope.numerics.influence import block_influence


def test_angles_are_those_that_were_made():
    """Rotations by known angles, small ones too: 1 − cos in single precision would be lost."""
    angles = torch.tensor([0.0, 1e-3, 0.5, math.pi / 2, math.pi], dtype=torch.float64)
    before = torch.stack([torch.ones(5), torch.zeros(5)])[None]
    after = 7 * torch.stack([angles.cos(), angles.sin()])[None].float()
    expected = 2 * (angles / 2).sin() ** 2
    torch.testing.assert_close(block_influence(before, after)[0].double(), expected, rtol=1e-4,
                               atol=1e-14)  # fmt: skip


def test_equals_the_cosine_in_double_precision_whatever_the_scale():
    x, y = torch.randn(2, 3, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = 1 - torch.cosine_similarity(x.double(), y.double(), dim=1).flatten(1)
    torch.testing.assert_close(block_influence(x, 9 * y).double(), expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_change_has_none_even_at_zero():
    x = torch.randn(2, 4, 6)
    x[0, :, :3] = 0
    assert (block_influence(x, x) == 0).all()
    assert (block_influence(x, torch.zeros_like(x))[0] == torch.tensor([0, 0, 0, 1, 1, 1])).all()
