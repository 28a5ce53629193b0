"""Check that loaded weights are finite; the error names the tensors that are not."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from retinoscope.core.errors import NotFinite
from retinoscope.core.wording import listed


def check_finite(model: nn.Module, weights: str) -> None:
    """Raise an error if a model's weights or running statistics are NaN or infinite.

    Other buffers may contain infinity, as masks do, but not NaN.

    Args:
        model: The model with its weights.
        weights: Name of the weights in the error message.
    """
    wrong = list(_wrong(model))
    if not wrong:
        return
    name, tensor = wrong[0]
    nans, total = int(tensor.isnan().sum()), tensor.numel()
    infinite = int(tensor.isinf().sum())
    held = " and ".join(f"{n:,} {what}" for n, what in ((nans, "NaN"), (infinite, "infinite")) if n)
    others = [other for other, _ in wrong[1:]]
    more = f", then in {listed(others)}" if others else ""
    raise NotFinite(
        f"The weights ({weights}) are not finite, first in {name}: {held} of {total:,} numbers"
        f"{more}. Nothing measured on them would mean anything: the training has diverged, or the "
        "file is damaged. Name other weights with --weights FILE (in Python weights=…), such as "
        "an earlier snapshot of the training."
    )


def _wrong(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if _floats(parameter) and not parameter.isfinite().all():
            yield name, parameter.detach()
    for name, buffer in model.named_buffers():
        if not _floats(buffer):
            continue
        statistic = name.rpartition(".")[2].startswith("running_")
        if not buffer.isfinite().all() if statistic else buffer.isnan().any():
            yield name, buffer


def _floats(tensor: Tensor) -> bool:
    """Return whether a tensor holds floating-point values that can be read."""
    return tensor.is_floating_point() and not nn.parameter.is_lazy(tensor) and not tensor.is_meta
