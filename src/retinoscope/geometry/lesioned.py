"""The outputs of a network without each of its parts, compared with its intact outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from retinoscope.anatomy.suffixes import Finder, Outputs, Replacing, run_lesions
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.subject import Batch, Subject
from retinoscope.models.memory import Parts, slices, went_in_parts
from retinoscope.numerics.divergence import kl_divergence


def compare_lesions(
    subject: Subject,
    batches: Sequence[Batch],
    find: Finder,
    replacing: Replacing | None = None,
    together: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, np.ndarray]:
    """Each image's output without each lesion, compared with the intact output.

    Args:
        subject: The network.
        batches: At least one image.
        find: Returns the lesions; see :func:`run_lesions`.
        replacing: Needed for lesions that replace something.
        together: Whether replaced values depend on all these images. Otherwise, batches are
            independent, so that only one is held in memory.
        say: Called with a notice if a batch must be processed in parts to save memory.

    Returns:
        ``index`` (N,), ``prediction`` (N,) and ``lesion_prediction`` (N, lesions), −1 if outputs
        are not finite, ``kl`` (N, lesions) from the intact output to the other, ``influence``
        (N, lesions); with labels also ``label`` (N,), ``nll`` (N,), ``nll_change`` (N, lesions).
    """
    memory, found = Parts(), []
    for portion in [batches] if together else [[batch] for batch in batches]:
        outputs = _outputs(subject, portion, find, replacing, together, memory, say)
        labels = [batch.labels for batch in portion if batch.labels is not None]
        indices = [index for batch in portion for index in batch.indices]
        compared = _compared(outputs, torch.cat(labels) if labels else None)
        found.append({"index": np.array(indices), **compared})
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _outputs(
    subject: Subject,
    batches: Sequence[Batch],
    find: Finder,
    replacing: Replacing | None,
    together: bool,
    memory: Parts,
    say: Callable[[str], None],
) -> Outputs:
    """The outputs for some batches, in as many parts as memory requires."""
    largest = max(len(batch.images) for batch in batches)

    def work(count: int) -> list[Outputs]:
        cuts = [(b, cut) for b in batches for cut in slices(len(b.images), count)]
        parts = [subject.to_device(batch.images[cut]) for batch, cut in cuts]
        runs = [parts] if together else [[part] for part in parts]
        return [run_lesions(subject.replay, find, run, replacing) for run in runs]

    found = memory.run(work, largest, lambda count: say(went_in_parts(largest, count)))
    return Outputs(
        torch.cat([one.intact for one in found]),
        [torch.cat(each) for each in zip(*(one.lesioned for one in found), strict=True)],
        torch.cat([one.influence for one in found]),
    )


def _compared(outputs: Outputs, labels: Tensor | None) -> dict[str, np.ndarray]:
    intact = _log_probabilities(outputs.intact)
    if lost := int(torch.isnan(intact).any(1).sum()):
        raise RetinoscopeError(
            f"The logits of {lost} of {len(intact)} images are not finite, with nothing removed. "
            "Are the weights undamaged, and do they match --mean, --std and --precision?"
        )
    each = [_log_probabilities(output) for output in outputs.lesioned]
    found = {
        "prediction": _predictions(intact),
        "lesion_prediction": _columns([_predictions(log) for log in each], len(intact)),
        "kl": _columns([kl_divergence(intact, log).float().numpy() for log in each], len(intact)),
        "influence": outputs.influence.float().numpy(),
    }
    if labels is None:
        return found
    right = labels[:, None]
    nll = -intact.gather(1, right)[:, 0]
    changes = [(-log.gather(1, right)[:, 0] - nll).float().numpy() for log in each]
    found |= {"label": labels.numpy(), "nll": nll.numpy()}
    return found | {"nll_change": _columns(changes, len(intact))}


def _log_probabilities(output: Tensor) -> Tensor:
    """In double precision (N, K); NaN for images with a logit that is NaN or +∞."""
    if output.ndim < 2 or output[0, 0].numel() != 1:
        raise NotApplicable(
            "needs one vector of logits per image; the model's output has the shape "
            f"{tuple(output.shape)} for {len(output)} images"
        )
    return log_softmax(output.flatten(1).cpu().double(), 1)


def _predictions(log: Tensor) -> np.ndarray:
    found = torch.where(torch.isnan(log).any(1), -1, log.argmax(1)).numpy()
    return found.astype(np.int16 if log.shape[1] <= np.iinfo(np.int16).max else np.int32)


def _columns(arrays: Sequence[np.ndarray], rows: int) -> np.ndarray:
    return np.stack(arrays, 1) if arrays else np.empty((rows, 0), np.float32)
