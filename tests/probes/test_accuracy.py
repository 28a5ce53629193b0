import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

import retinoscope
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.models.drawing import drawing
from retinoscope.probes.accuracy import Accuracy
from retinoscope.run.engines import choose_engine
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY


class Bright(nn.Module):
    """Answers 1 with probability 3/4 for bright images, else 0, whatever they show."""

    def __init__(self, classes: int = 2, level: float = 0.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(np.log(3))))
        self.level, self.classes = level, classes

    def forward(self, x):
        bright = (x.mean((1, 2, 3)) > self.level).to(x.dtype)
        rest = torch.full_like(x[:, 0, 0, : self.classes - 2], -1e9)
        return torch.cat([self.scale * torch.stack([1 - bright, bright], 1), rest], 1)


class Bayesian(nn.Module):
    """Drops half of its channels, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = dropout(self.stem(x).relu(), 0.5, training=True)
        return 20 * self.head(x.mean((2, 3)))


class Squares(torch.utils.data.Dataset):
    """Black and white squares of classes 0 and 1; each fourth has the wrong label."""

    def __init__(self, count: int = 40) -> None:
        self.count = count
        self.classes = ["0", "1"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        white = index % 2
        return np.full((8, 8, 3), 255 * white, np.uint8), white ^ (index % 4 == 3)


def subject_on_squares(count=40, **settings):
    options = dict(name="bright", size=(8, 8), mean=(0.0,) * 3, std=(1.0,) * 3, images=None)
    return load_subject(Bright().eval(), Squares(count), **options | settings)


def test_known_accuracy_nll_and_errors():
    found = retinoscope.measure(Accuracy(), subject_on_squares())
    right, wrong = -np.log(0.75), -np.log(0.25)
    assert (found.images, found.classes, found.accuracy) == (40, 2, 0.75)
    assert found.nll == pytest.approx(0.75 * right + 0.25 * wrong, rel=1e-6)
    assert found.accuracy_error == pytest.approx(np.sqrt(0.75 * 0.25 / 39))
    assert found.nll_error == pytest.approx(
        np.array([right] * 30 + [wrong] * 10).std(ddof=1) / 40**0.5, rel=1e-6
    )
    np.testing.assert_array_equal(found.index, np.arange(40))
    np.testing.assert_array_equal(found.prediction, np.arange(40) % 2)
    np.testing.assert_allclose(found.confidence, 0.75, rtol=1e-6)
    assert found.selective[-1] == found.accuracy
    assert found.findings() == ["75 % ± 6.9 accuracy on 40 images, NLL 0.562 ± 0.076"]


def test_says_where_guessing_would_do_as_well():
    found = retinoscope.measure(Accuracy(), load_subject(TINY, "cues", images=60))
    assert "guessing among 10 classes would be as accurate" in found.findings()[1]


@torch.no_grad()
def test_equals_cross_entropy_and_argmax_in_a_plain_loop():
    """Also where probabilities are too small for a double: at order one, logits are large."""
    subject = load_subject(TINY, "cues", images=50, batch=16)
    for weight in subject.backbone.parameters():
        weight *= 30
    subject = load_subject(subject.backbone, "cues", name="loud", size=(16, 16), images=50)
    found = retinoscope.measure(Accuracy(), subject)
    split = subject.split(Accuracy().needs)
    (batch,) = split.batches(range(len(split)), len(split))
    logits = subject.model(batch.images).double()
    each = cross_entropy(logits, batch.labels, reduction="none").numpy()
    assert each.max() > 750
    np.testing.assert_allclose(found.image_nll, each, rtol=1e-5, atol=1e-9)
    np.testing.assert_array_equal(found.prediction, logits.argmax(1))
    assert found.accuracy == (logits.argmax(1) == batch.labels).double().mean()


@pytest.mark.proof
def test_batches_jobs_and_pieces_change_nothing(tmp_path):
    """300 images are three shards of the shared pass."""
    once = retinoscope.measure(Accuracy(), load_subject(TINY, "cues", images=300, batch=300))
    small = load_subject(TINY, "cues", images=300, batch=7)
    run = Run(tmp_path, engine=choose_engine(jobs=2))
    again = run.measure(Accuracy(), small)
    assert len(list(tmp_path.rglob("accuracy.*/*.piece"))) == 3
    np.testing.assert_array_equal(again.prediction, once.prediction)
    np.testing.assert_allclose(again.image_nll, once.image_nll, rtol=1e-5, atol=1e-6)
    assert again.accuracy == once.accuracy


def test_passes_of_a_network_that_draws_are_averaged_as_probabilities():
    subject = load_subject(Bayesian().eval(), "cues", size=(8, 8), images=12, passes=3)
    found = retinoscope.measure(Accuracy(), subject)
    (batch,) = subject.split(Accuracy().needs).batches(range(12), 12)
    passes = []
    for number in range(3):
        with torch.no_grad(), drawing(subject, number, batch.indices):
            passes.append(subject.model(batch.images).double().softmax(1))
    mean = torch.stack(passes).mean(0)
    expected = -mean[torch.arange(12), batch.labels].log()
    np.testing.assert_allclose(found.image_nll, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(images=1), "needs at least 2 labelled test images .* there is 1"),
        (dict(name="seven", images=None), "no classifier: its output is 7 features"),
    ],
)
def test_not_applicable_with_the_deciding_reason(settings, reason):
    model = Bright(7 if settings.get("name") else 2).eval()
    given = dict(name="bright", size=(8, 8)) | settings
    with pytest.raises(NotApplicable, match=reason):
        retinoscope.measure(Accuracy(), load_subject(model, Squares(8), **given))


def test_no_labels_and_broken_weights():
    class Unlabelled(Squares):
        def __getitem__(self, index):
            return super().__getitem__(index)[0]

    plain = load_subject(Bright().eval(), Unlabelled(8), name="bright", size=(8, 8))
    with pytest.raises(NotApplicable, match="needs labels; these images have no labels"):
        retinoscope.measure(Accuracy(), plain)

    class Overflowing(Bright):
        def forward(self, x):
            return super().forward(x) * 1e38 * 1e38

    subject = load_subject(Overflowing().eval(), Squares(8), name="broken", size=(8, 8))
    with pytest.raises(RetinoscopeError, match="of 8 images are not finite"):
        retinoscope.measure(Accuracy(), subject)
