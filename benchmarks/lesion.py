"""Lesions of all units, and of all heads, in units of forward passes.

A plain loop over L lesions costs L forward passes. Here each run starts from the state before its
lesion, so that half a pass is expected for units spread evenly; the intact pass, the comparison of
outputs and the block influence are included. Heads share the values up to their attention. Units
are first checked against ``Replay.without``, heads against the eager model with a hook that sets
one head to zero. Everything on one thread, on images in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks import NETWORKS
from pairs import Ratio, asked, time_pairs, verdict
from retinoscope.core.subject import Batch, Subject
from retinoscope.geometry.lesioned import compare_lesions
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.numerics.divergence import kl_divergence
from retinoscope.probes.lesion import Lesion
from retinoscope.run.subject import load_subject

BAR = 0.60
"""Forward passes per lesion."""
IMAGES = 64


def main() -> None:
    """Print a line per network and kind of lesion."""
    pairs = asked(__doc__, pairs=15).pairs
    for called, name in NETWORKS.items():
        subject = load_subject(name, "cues", pretrained=False, images=IMAGES)
        draw_at_order_one(subject.backbone)
        (batch,) = subject.splits["test"].batches(range(IMAGES), IMAGES)
        compare(called, subject, batch, pairs)


def compare(called: str, subject: Subject, batch: Batch, pairs: int) -> None:
    """All lesions of a kind against the plain forward pass."""
    kinds = ["units", "heads"] if subject.anatomy.where(kind="attention") else ["units"]
    for remove in kinds:
        probe = Lesion(remove=remove)
        lesions = probe.lesions(subject.replay)

        def ours(probe: Lesion = probe) -> dict[str, object]:
            return dict(compare_lesions(subject, [batch], probe.lesions, _zeros))

        @torch.inference_mode()
        def forward() -> Tensor:
            return subject.model(batch.images)

        off = agree(subject, batch, probe)
        found = time_pairs(ours, forward, pairs)
        per = Ratio(*(x / len(lesions) for x in (found.median, found.low, found.high)),
                    found.pairs, found.seconds)  # fmt: skip
        print(
            f"{called}: {len(lesions)} {remove} / forward {found}; per lesion {per.median:.3f} "
            f"(quartiles {per.low:.3f}–{per.high:.3f}); bar {BAR:.2f} "
            f"{verdict(per.median <= BAR)}; answers agree to {off:.1e}"
        )


def _zeros(values: Tensor) -> Tensor:
    return values.new_zeros(1)


@torch.inference_mode()
def agree(subject: Subject, batch: Batch, probe: Lesion) -> float:
    """The largest relative difference of KL divergences from those of the slow way."""
    found = compare_lesions(subject, [batch], probe.lesions, _zeros)["kl"].mean(0)
    intact = subject.model(batch.images).double().log_softmax(1)
    worst = 0.0
    for lesion, ours in zip(probe.lesions(subject.replay), found, strict=True):
        if probe.remove == "units":
            logits = subject.replay.without(lesion.name)(batch.images)
        else:
            logits = _without_head(subject, lesion.name, batch.images)
        theirs = kl_divergence(intact, logits.double().log_softmax(1)).mean().item()
        if theirs < 1e-6:
            raise SystemExit(f"{lesion.name} did not matter: nothing would be shown")
        worst = max(worst, abs(ours - theirs) / theirs)
    if worst > 1e-3:  # single precision on both sides, small divergences of large logits
        raise SystemExit(f"{subject.name}: the answers differ by {worst:.1e}")
    return worst


def _without_head(subject: Subject, name: str, images: Tensor) -> Tensor:
    """The eager model with one head of a timm attention set to zero before its projection."""
    unit, _, head = name.rpartition(" head ")
    attention: nn.Module = subject.backbone.get_submodule(unit)

    def silent(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        out = given[0].clone()
        out.unflatten(-1, (attention.num_heads, -1))[:, :, int(head)] = 0
        return (out,)

    hook = attention.proj.register_forward_pre_hook(silent)
    try:
        return subject.model(images)
    finally:
        hook.remove()


if __name__ == "__main__":
    main()
