"""The training loss: soft or hard targets, averaged predictions, a teacher.

Distillation is that of Touvron et al., "Training data-efficient image transformers & distillation
through attention" (ICML 2021, arXiv:2012.12877), equations 2 and 3. Their code divides the soft
term by the number of classes as well; here it is the mean over images, as in the equation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div


def averaged(passes: Sequence[Tensor]) -> Tensor:
    """Logits (N, K) whose softmax is the mean of the softmax of each pass.

    With several passes of a stochastic network this is its training-phase ensemble: the loss is
    that of the averaged prediction (Park & Kim, "Blurs Behave Like Ensembles", ICML 2022,
    arXiv:2105.12639).

    Example:
        >>> import torch
        >>> even = averaged([torch.tensor([[0.0, 40.0]]), torch.tensor([[40.0, 0.0]])])
        >>> even.softmax(-1).tolist()
        [[0.5, 0.5]]
    """
    if len(passes) == 1:
        return passes[0]
    logs = torch.stack([logits.log_softmax(-1) for logits in passes])
    return logs.logsumexp(0) - math.log(len(passes))


def objective(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy with labels (N,) or soft targets (N, K)."""
    return cross_entropy(logits, targets)


def distilled(
    logits: Tensor,
    from_teacher: Tensor,
    targets: Tensor,
    taught: Tensor,
    kind: Literal["hard", "soft"],
    share: float,
    temperature: float,
) -> Tensor:
    """The loss with a teacher.

    Args:
        logits: The student's logits (N, K) to compare with the targets.
        from_teacher: The student's logits (N, K) to compare with the teacher's; the same as
            ``logits`` for a network without a distillation token.
        targets: Labels (N,) or soft targets (N, K).
        taught: The teacher's logits (N, K).
        kind: Learn the teacher's top class, or its softened probabilities.
        share: Weight of the distillation loss, from 0 to 1.
        temperature: Temperature that softens both predictions.
    """
    own = objective(logits, targets)
    if kind == "hard":
        lesson = cross_entropy(from_teacher, taught.argmax(-1))
    else:
        softened = (from_teacher / temperature).log_softmax(-1)
        goal = (taught / temperature).log_softmax(-1)
        lesson = temperature**2 * kl_div(softened, goal, reduction="batchmean", log_target=True)
    return (1 - share) * own + share * lesson
