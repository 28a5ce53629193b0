"""Anatomy and replay against the plain forward pass of the same model, side by side in one run.

For each model, the outputs are checked to agree, then timed in interleaved pairs.

- states of all units, against a forward pass; the bound is 1
- all L single lesions of a batch, against L forward passes; the bound is the share of FLOPs
  after the removed units
- dissecting the model, against a forward pass of 32 images
"""

from __future__ import annotations

import timm
import torch

from pairs import asked, time_pairs, verdict
from retinoscope import dissect, replay
from retinoscope.anatomy.replay import Replay
from retinoscope.models.order_one import draw_at_order_one

MODELS = ("resnet50", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224")


def main() -> None:
    """Print a line per model and bar."""
    arguments = asked(__doc__, pairs=15, models=MODELS)
    for name in arguments.models:
        with torch.no_grad():
            measure(name, arguments.pairs)


def measure(name: str, pairs: int) -> None:
    """Compare one model with all bars."""
    model = draw_at_order_one(timm.create_model(name)).eval()
    ours = replay(model, 224, name=name)
    x = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    agree(model, ours, x[:2])

    found = time_pairs(lambda: ours.states(x), lambda: model(x), pairs)
    print(f"{name}: states / forward {found}; bound 1; bar 1.10 {verdict(found.median <= 1.10)}")

    few = x[:2]
    count = len(ours.anatomy.where(residual=True))
    found = time_pairs(
        lambda: list(ours.lesions(few)), lambda: [model(few) for _ in range(count)], pairs
    )
    print(
        f"{name}: {count} lesions / {count} forwards {found}; "
        f"bound {suffix_share(ours):.3f}; bar 0.60 {verdict(found.median <= 0.60)}"
    )

    many = torch.randn(32, 3, 224, 224)
    found = time_pairs(lambda: dissect(model, 224), lambda: model(many), pairs)
    print(f"{name}: dissect / forward of 32 {found}; bar 5 {verdict(found.median <= 5)}")


def agree(model: torch.nn.Module, ours: Replay, x: torch.Tensor) -> None:
    """Check that states end in the model's logits, and that every lesion has an effect."""
    logits = model(x)
    torch.testing.assert_close(ours.states(x)[ours.anatomy.units[-1].name].raw, logits)
    for unit, lesioned in ours.lesions(x):
        torch.testing.assert_close(lesioned, ours.without(unit)(x))
        if (lesioned - logits).abs().max() <= 1e-3 * logits.abs().max():
            raise SystemExit(f"Removing {unit.name} has no effect, so nothing would be measured")


def suffix_share(ours: Replay) -> float:
    """The minimum cost of all lesions, in forward passes per lesion, counted in FLOPs.

    Each lesion needs everything after its unit; everything before is computed once.
    """
    units = ours.anatomy.units
    behind = [sum(u.flops for u in units[place + 1 :]) for place in range(len(units))]
    removed = [place for place, unit in enumerate(units) if unit.residual]
    before = sum(u.flops for u in units[: removed[-1]])
    return (sum(behind[place] for place in removed) + before) / ours.anatomy.flops / len(removed)


if __name__ == "__main__":
    main()
