"""What a network draws depends on seed, pass, image and site alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from retinoscope.anatomy.replay import replay
from retinoscope.core.errors import NotDeterministic
from retinoscope.models.drawing import Drawing


class Noisy(nn.Module):
    """Draws in four ways, one of them with images folded into a larger batch."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + functional.dropout(x, 0.3, training=True) + 0.1 * torch.randn_like(x)
        x = functional.dropout2d(x, 0.2, training=True)
        folded = x.unflatten(2, (2, -1)).transpose(1, 2).flatten(0, 1)
        x = x + folded.bernoulli(0.5).unflatten(0, (x.shape[0], 2)).transpose(1, 2).flatten(2, 3)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Noisy().eval()


def run(model, images, indices, seed=0, number=0):
    with torch.no_grad(), Drawing(seed, number, indices):
        return model(images)


def test_batches_and_order_change_nothing(model):
    images = torch.rand(6, 3, 8, 8)
    whole = run(model, images, range(6))
    torch.testing.assert_close(run(model, images[2:4], (2, 3)), whole[2:4])
    torch.testing.assert_close(run(model, images.flip(0), range(5, -1, -1)), whole.flip(0))
    assert torch.equal(run(model, images, range(6)), whole)


def test_seed_pass_and_image_do(model):
    images = torch.rand(1, 3, 8, 8).expand(6, -1, -1, -1)
    whole = run(model, images, range(6))
    assert len({tuple(row.tolist()) for row in whole}) == 6
    for other in (run(model, images, range(6), seed=1), run(model, images, range(6), number=1)):
        assert (other - whole).abs().min() > 0


def test_the_replayed_network_draws_the_same(model):
    images = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(
        run(replay(model, 8), images, range(3)), run(model, images, range(3))
    )


def test_shares_are_those_that_were_asked_for():
    ones = torch.ones(50, 40, 50)
    with Drawing(0, 0, range(50)):
        dropped = functional.dropout(ones, 0.3, training=True)
        normal, uniform = torch.randn_like(ones), torch.rand_like(ones)
        each = torch.bernoulli(torch.full_like(ones, 0.1))
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / 0.7]))
    # 100,000 draws: four standard errors
    assert (dropped == 0).float().mean() == pytest.approx(0.3, abs=0.006)
    assert normal.mean() == pytest.approx(0, abs=0.013)
    assert normal.std() == pytest.approx(1, abs=0.01)
    assert uniform.mean() == pytest.approx(0.5, abs=0.004)
    assert each.mean() == pytest.approx(0.1, abs=0.004)


def test_draws_that_no_image_owns_are_refused():
    with pytest.raises(NotDeterministic, match=r"shape \(7,\) for 2 images"), Drawing(0, 0, (0, 1)):
        torch.rand(7)


def test_noise_on_weights_is_found_before_work_starts():
    from retinoscope import Needs, load_subject
    from retinoscope.run.check import check_deterministic

    class Bayesian(Noisy):
        def forward(self, x):
            weight = self.stem.weight + 0.3 * torch.randn_like(self.stem.weight)
            return self.head(functional.conv2d(x, weight).mean((2, 3)))

    subject = load_subject(Bayesian().eval(), "cues", size=(8, 8), images=4, passes=2)
    with pytest.raises(NotDeterministic, match=r"are not drawn per image|numbers of shape"):
        check_deterministic(subject, Needs())


def test_nothing_else_is_touched():
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    with Drawing(0, 0, (0,)):
        functional.dropout(torch.ones(1, 9), 0.5, training=True)
    assert torch.equal(torch.rand(4), expected)
