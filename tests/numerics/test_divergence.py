import math

import torch
from torch.nn.functional import log_softmax

from retinoscope.numerics.divergence import kl_divergence


def test_equals_a_sum_written_out():
    """Also where probabilities are far below what a float can hold beside 1."""
    logits = 30 * torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)).double()
    p, q = log_softmax(logits, -1)
    found = kl_divergence(p, q)
    for row in range(6):
        terms = [math.exp(a) * (a - b) for a, b in zip(p[row], q[row], strict=True)]
        assert math.isclose(found[row], math.fsum(terms), rel_tol=1e-12)
    assert found.min() > 1


def test_equal_outputs_and_masked_classes():
    log = log_softmax(torch.tensor([[3.0, -torch.inf, 1.0]]).double(), -1)
    other = log_softmax(torch.tensor([[1.0, -torch.inf, 1.0]]).double(), -1)
    assert kl_divergence(log, log).item() == 0
    assert 0 < kl_divergence(log, other).item() < 1
    full = log_softmax(torch.zeros(1, 3).double(), -1)
    assert kl_divergence(full, log).item() == math.inf  # a class that has become impossible
