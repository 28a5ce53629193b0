import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from retinoscope.core.errors import NotApplicable
from retinoscope.core.subject import Batch, Subject
from retinoscope.geometry.scores import Scores, scored
from retinoscope.models.memory import DoesNotFit
from retinoscope.models.order_one import draw_at_order_one
from run.tiny import build


def subject_of(model, **options):
    """As much of a subject as scores ask for."""
    return Subject(
        name="tiny", backbone=model, model=model, replay=None, splits={}, weights="", state="",
        fingerprint="", **options,
    )  # fmt: skip


def batch_of(start, stop, soft=False):
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(20, 3, 8, 8, generator=draws)
    labels = torch.randint(10, (20,), generator=draws)
    targets = torch.rand(20, 10, generator=draws).pow(8)
    targets /= targets.sum(1, keepdim=True)
    rows = slice(start, stop)
    indices = tuple(range(20))[rows]
    return Batch(images[rows], indices, labels[rows], targets[rows] if soft else None)


@pytest.fixture(scope="module")
def model():
    return draw_at_order_one(build()).eval()


@pytest.mark.parametrize("soft", [False, True])
def test_agrees_with_plain_cross_entropy_over_all_images(model, soft):
    batch = batch_of(0, 20, soft)
    found = scored(subject_of(model), [batch])
    with torch.no_grad():
        logits = model(batch.images)
    target = batch.targets.double() if soft else batch.labels
    assert found.nll == pytest.approx(cross_entropy(logits.double(), target).item(), rel=1e-12)
    assert found.accuracy == (logits.argmax(1) == batch.labels).double().mean().item()
    assert found.images == 20


@pytest.mark.parametrize("soft", [False, True])
def test_batches_of_any_size_give_the_same(model, soft):
    """Single precision: other batches are computed in another order. A mean of means is far off."""
    whole = scored(subject_of(model), [batch_of(0, 20, soft)])
    ends = [0, 1, 8, 17, 17, 20]
    parts = [batch_of(a, b, soft) for a, b in pairwise(ends)]
    found = scored(subject_of(model), iter(parts))
    assert found.nll == pytest.approx(whole.nll, rel=1e-6)
    assert (found.accuracy, found.images) == (whole.accuracy, 20)
    means = np.mean([scored(subject_of(model), [part]).nll for part in parts if part.indices])
    assert abs(means - whole.nll) > 1e-3 * whole.nll


class Says(nn.Module):
    """Answers with given logits, whatever it sees."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def two(label, targets=None):
    soft = None if targets is None else torch.tensor([targets] * 2)
    return Batch(torch.zeros(2, 3, 4, 4), (0, 1), torch.tensor([label, label]), soft)


def test_known_answers():
    even = subject_of(Says([0.0, 0.0, 0.0]))
    assert scored(even, [two(0)]).nll == pytest.approx(math.log(3), rel=1e-15)
    sure = subject_of(Says([1e5, -1e5]))
    assert scored(sure, [two(0)]) == Scores(0.0, 1.0, 2)
    assert scored(sure, [two(1)]) == Scores(2e5, 0.0, 2)
    assert scored(sure, [two(1, [0.25, 0.75])]).nll == pytest.approx(1.5e5)
    # A soft target's label still says what is right.
    assert scored(sure, [two(0, [0.25, 0.75])]).accuracy == 1


def test_double_precision_resolves_small_losses():
    """log(1 + e⁻³⁰) is 9e-14: nothing in single precision."""
    found = scored(subject_of(Says([30.0, 0.0])), [two(0)])
    assert found.nll == pytest.approx(math.log1p(math.exp(-30)), rel=1e-2)


def test_what_is_not_finite_is_told_as_it_is():
    assert scored(subject_of(Says([-math.inf, 0.0])), [two(0)]).nll == math.inf
    assert math.isnan(scored(subject_of(Says([math.nan, 0.0])), [two(0)]).nll)


class Hungry(nn.Module):
    def __init__(self, model, most, error):
        super().__init__()
        self.inner, self.most, self.error = model, most, error

    def forward(self, images):
        if len(images) > self.most:
            raise self.error
        return self.inner(images)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")]
)
@pytest.mark.parametrize("soft", [False, True])
def test_without_memory_batches_are_divided(model, error, soft):
    said = []
    found = scored(
        subject_of(Hungry(model, 2, error)), [batch_of(0, 7, soft), batch_of(7, 8)], said.append
    )
    expected = scored(subject_of(model), [batch_of(0, 7, soft), batch_of(7, 8)])
    assert found.nll == pytest.approx(expected.nll, rel=1e-6)
    assert (found.accuracy, found.images) == (expected.accuracy, 8)
    assert said == [
        "out of memory: a mini-batch of 7 goes through in 2 parts",
        "out of memory: a mini-batch of 7 goes through in 4 parts",
    ]


def test_one_image_that_does_not_fit_and_other_errors_are_raised(model):
    with pytest.raises(DoesNotFit, match=r"One image does not fit into memory\. Use a smaller"):
        scored(subject_of(Hungry(model, 0, torch.OutOfMemoryError("full"))), [batch_of(0, 3)])
    with pytest.raises(RuntimeError, match="other"):
        scored(subject_of(Hungry(model, 0, RuntimeError("other"))), [batch_of(0, 3)])


@pytest.mark.parametrize("batches", [[], [batch_of(4, 4)]])
def test_no_images_no_score(model, batches):
    found = scored(subject_of(model), batches)
    assert math.isnan(found.nll)
    assert math.isnan(found.accuracy)
    assert found.images == 0


def test_images_without_labels_are_refused(model):
    images = batch_of(0, 2).images
    with pytest.raises(NotApplicable, match="needs labels; these images have none"):
        scored(subject_of(model), [Batch(images, (0, 1))])


def test_nothing_is_left_behind(model):
    flags = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scored(subject_of(model), [batch_of(0, 3)])
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
