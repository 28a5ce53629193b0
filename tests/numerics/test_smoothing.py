import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.numerics.smoothing import (
    component_norms,
    effective_rank,
    mean_absolute_cosine,
    mean_cosine,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_parts(tokens):
    """Some tokens first, the others as a view of maps, as they come from a network."""
    maps = tokens[:, 2:].mT.contiguous()
    return [tokens[:, :2], maps.mT]


def naive_cosines(tokens, centred=False):
    """All pairs in double precision, written out."""
    found = []
    for one in tokens.double().numpy():
        one = one - one.mean(0) if centred else one
        unit = one / np.linalg.norm(one, axis=1, keepdims=True)
        pairs = [a @ b for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]
        found.append((np.mean(pairs), np.mean(np.abs(pairs))))
    return np.array(found).T


def test_the_two_components_are_orthogonal_and_sum_to_the_tokens():
    tokens = drawn(3, 7, 5) + 2
    low = tokens.double().mean(1, keepdim=True).expand(-1, 7, -1)
    high = tokens.double() - low
    torch.testing.assert_close(low + high, tokens.double())
    found = component_norms(in_parts(tokens))
    for norm, expected in zip(found, (high, low), strict=True):
        torch.testing.assert_close(norm.double(), expected.norm(dim=(1, 2)), rtol=1e-6, atol=0)
    total = found[0].square() + found[1].square()
    torch.testing.assert_close(total, tokens.square().sum((1, 2)))


def test_equal_tokens_have_nothing_but_a_mean():
    tokens = drawn(2, 1, 64).expand(-1, 50, -1)
    high, low = component_norms([tokens])
    assert (high / low < 1e-6).all()
    torch.testing.assert_close(mean_cosine([tokens]), torch.ones(2))
    torch.testing.assert_close(mean_absolute_cosine(tokens), torch.ones(2))
    assert (effective_rank(tokens) == 0).all()


def test_white_noise_has_the_ratio_that_its_degrees_of_freedom_say():
    """(n − 1)·d of n·d squares are in HFC; each of these is a χ² variable."""
    count, width = 65, 2000
    high, low = component_norms([drawn(8, count, width)])
    squares = (high / low).square().double().numpy()
    # Relative deviations: of d squares √(2/d), of (n − 1)·d far less; five deviations of a mean.
    room = 5 * math.sqrt(2 / width) / math.sqrt(8)
    assert squares.mean() == pytest.approx(count - 1, rel=room)
    assert mean_cosine([drawn(8, count, width)]).abs().max() < 5 / math.sqrt(width)


def test_orthogonal_and_opposite_tokens():
    eye = torch.eye(6)[None] * torch.arange(1.0, 7)[:, None]
    assert mean_cosine(in_parts(eye)).item() == pytest.approx(0, abs=1e-7)
    assert mean_absolute_cosine(eye).item() == pytest.approx(0, abs=1e-7)
    pair = torch.tensor([[[1.0, 2.0], [-2.0, -4.0]]])
    assert mean_cosine([pair]).item() == pytest.approx(-1)
    assert mean_absolute_cosine(pair).item() == pytest.approx(1)
    # Centred tokens sum to 0, so vectors of equal length have a mean cosine of −1/(n − 1).
    assert mean_cosine([torch.eye(6)[None]], centred=True).item() == pytest.approx(-1 / 5)


@pytest.mark.parametrize("centred", [False, True])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), count=st.integers(4, 9), width=st.integers(2, 12))
def test_cosines_equal_those_of_all_pairs(seed, count, width, centred):
    tokens = drawn(3, count, width, seed=seed) + 0.3
    signed, absolute = naive_cosines(tokens, centred)
    found = mean_cosine(in_parts(tokens), centred)
    np.testing.assert_allclose(found, signed, atol=2e-6)
    np.testing.assert_allclose(mean_absolute_cosine(tokens, centred), absolute, atol=2e-6)


def test_tokens_that_are_0_are_left_out():
    tokens = drawn(1, 5, 4)
    holed = torch.cat([tokens, torch.zeros(1, 3, 4)], 1)
    torch.testing.assert_close(mean_cosine([holed]), mean_cosine([tokens]))
    torch.testing.assert_close(mean_absolute_cosine(holed), mean_absolute_cosine(tokens))
    alone = holed[:, 4:]
    assert mean_cosine([alone]).isnan().all()
    assert mean_absolute_cosine(alone).isnan().all()


def test_effective_ranks_of_known_spectra():
    rank_one = drawn(1, 9, 1) * drawn(1, 1, 6, seed=1)
    assert effective_rank(rank_one).item() == pytest.approx(1 / 6)
    # Rows of an orthogonal matrix that are orthogonal to the mean: all singular values are equal.
    basis = torch.linalg.qr(torch.cat([torch.ones(7, 1), drawn(7, 6)], 1).double()).Q[:, 1:]
    assert effective_rank(basis[None]).item() == pytest.approx(1)
    assert effective_rank(basis[None, :, :3]).item() == pytest.approx(1)  # 3 of 3 directions
    scaled = basis * torch.tensor([4.0, 4.0, 1.0, 1.0, 0.0, 0.0])
    share = np.array([0.4, 0.4, 0.1, 0.1])
    assert effective_rank(scaled[None]).item() == pytest.approx(
        np.exp(-(share * np.log(share)).sum()) / 6
    )


def test_scale_rotation_and_order_of_tokens_change_nothing():
    tokens = drawn(2, 8, 5) + 1
    turn = torch.linalg.qr(drawn(5, 5)).Q
    moved = 3 * (tokens @ turn)[:, torch.randperm(8, generator=torch.Generator().manual_seed(2))]
    for measure in (
        lambda x: torch.div(*component_norms([x])),
        lambda x: mean_cosine([x]),
        mean_absolute_cosine,
        effective_rank,
    ):
        torch.testing.assert_close(measure(moved), measure(tokens), rtol=2e-5, atol=2e-6)
