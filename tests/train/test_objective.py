import pytest
import torch
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch.nn.functional import one_hot, softmax

from retinoscope.data.augment import Augmentation
from retinoscope.train.objective import averaged, distilled, objective


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


LABELS = torch.tensor([0, 1, 2, 3, 4, 0])


def test_soft_targets_are_timms(logits: torch.Tensor):
    soft = softmax(torch.randn(6, 5, dtype=torch.float64), -1)
    torch.testing.assert_close(objective(logits, soft), SoftTargetCrossEntropy()(logits, soft))


def test_smoothed_labels_are_timms(logits: torch.Tensor):
    _, targets = Augmentation(smoothing=0.1).mix(torch.zeros(6, 3, 2, 2), LABELS, 5, seed=0, step=0)
    found = objective(logits, targets.double())
    # Targets are made in float32, so the smoothing itself is rounded there.
    torch.testing.assert_close(
        found, LabelSmoothingCrossEntropy(0.1)(logits, LABELS), rtol=1e-6, atol=1e-7
    )


def test_labels_and_their_one_hot_targets_are_the_same(logits: torch.Tensor):
    hot = one_hot(LABELS, 5).double()
    torch.testing.assert_close(objective(logits, LABELS), objective(logits, hot))


def test_averaged_passes_are_the_mean_prediction(logits: torch.Tensor):
    others = [logits, logits.flip(0), 2 * logits]
    mean = torch.stack([softmax(one, -1) for one in others]).mean(0)
    torch.testing.assert_close(softmax(averaged(others), -1), mean)
    naive = -mean[torch.arange(6), LABELS].log().mean()
    torch.testing.assert_close(objective(averaged(others), LABELS), naive)


def test_averaging_one_pass_or_the_same_twice_changes_nothing(logits: torch.Tensor):
    assert averaged([logits]) is logits
    torch.testing.assert_close(softmax(averaged([logits] * 4), -1), softmax(logits, -1))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_is_the_formula(logits: torch.Tensor, temperature: float):
    """(1 - λ) CE + λ τ² KL(teacher ‖ student), both softened by τ, mean over images."""
    taught, answer, share = logits.flip(1), 0.5 * logits, 0.3
    q = softmax(taught / temperature, -1)
    p = softmax(answer / temperature, -1)
    lesson = temperature**2 * (q * (q / p).log()).sum(-1).mean()
    expected = (1 - share) * objective(logits, LABELS) + share * lesson
    found = distilled(logits, answer, LABELS, taught, "soft", share, temperature)
    torch.testing.assert_close(found, expected)
    # The published code divides by the number of classes as well.
    deit = torch.nn.functional.kl_div(
        (answer / temperature).log_softmax(1),
        (taught / temperature).log_softmax(1),
        reduction="sum",
        log_target=True,
    ) * temperature**2 / answer.numel()  # fmt: skip
    torch.testing.assert_close(deit * 5, lesson)


def test_hard_distillation_is_the_formula(logits: torch.Tensor):
    """Half of the loss is the teacher's first choice."""
    taught, answer = logits.flip(1), 0.5 * logits
    expected = 0.5 * objective(logits, LABELS) + 0.5 * objective(answer, taught.argmax(-1))
    found = distilled(logits, answer, LABELS, taught, "hard", 0.5, 7.0)
    torch.testing.assert_close(found, expected)


def test_a_teacher_without_a_share_teaches_nothing(logits: torch.Tensor):
    taught = logits.flip(1)
    for kind in ("hard", "soft"):
        found = distilled(logits, logits, LABELS, taught, kind, 0.0, 3.0)
        torch.testing.assert_close(found, objective(logits, LABELS))
    same = distilled(logits, logits, LABELS, logits, "soft", 1.0, 3.0)
    torch.testing.assert_close(same, torch.zeros((), dtype=torch.float64))
