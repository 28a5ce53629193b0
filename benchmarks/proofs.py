"""Checks of a registered network: each returns a table cell or raises an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from retinoscope.anatomy.replay import replay
from retinoscope.layers.dropout import MonteCarloDropout
from retinoscope.models.families.preact_resnet import PreActResNet
from retinoscope.models.order_one import draw_at_order_one

COMPILE_BAR = 1e-4
"""Tolerated relative distance of logits: float32, other order of sums in up to 150 layers."""
BF16_BAR = 0.2
"""Tolerated relative distance of logits: 8 bits of mantissa, 0.4 % per rounding, all layers."""
BF16_ROUNDING = 5
"""The same, relative to the error of rounding weights and images and computing in float32."""


@dataclass
class Case:
    """A network to check, in eval mode, with two images and its logits."""

    name: str
    backend: str
    options: dict[str, Any]
    model: Any
    images: Tensor
    logits: Tensor
    notes: list[str] = field(default_factory=list)


def prepare(name: str, backend: str) -> Case:
    """The case of a name, with weights drawn at order one and without randomness."""
    torch.manual_seed(0)  # drawing at order one depends on the signs of the initial vectors
    draws = any(isinstance(module, MonteCarloDropout) for module in weightless(name).modules())
    options = {"always": False} if draws else {}
    model = build(name, **options)
    draw_at_order_one(model)
    channels, *size = model.pretrained_cfg["input_size"]
    if isinstance(model, PreActResNet):
        size = [min(64, side) for side in size]  # any size works, and this one is fast
    images = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(images)
    return Case(name, backend, options, model, images, logits)


def build(name: str, **options: Any) -> Any:
    """The network in eval mode, with new random weights."""
    return timm.create_model(name, **options).eval()


def weightless(name: str) -> nn.Module:
    """The network as registered, built without allocating memory."""
    with torch.device("meta"):
        return timm.create_model(name)


@torch.no_grad()
def forward(case: Case) -> str:
    """Check that logits are finite and depend on the image."""
    expected = (2, case.model.num_classes)
    demand(case.logits.shape == expected, f"{tuple(case.logits.shape)} instead of {expected}")
    demand(case.logits.isfinite().all(), "logits are not finite")
    demand(not torch.equal(*case.logits), "both images have the same logits")
    if case.options:
        draws = draw_at_order_one(build(case.name))
        demand(not torch.equal(draws(case.images), draws(case.images)), "two passes agree")
        return "draws"
    return "ok"


def backward(case: Case) -> str:
    """Check that every parameter has a finite gradient; gradients that are all zero are noted."""
    torch.manual_seed(0)
    state = {key: value.clone() for key, value in case.model.named_buffers()}
    logits = case.model.train()(case.images)
    nn.functional.cross_entropy(logits, torch.arange(2)).backward()
    case.model.eval()
    case.model.load_state_dict(state, strict=False)  # restore batch statistics
    without, zero = [], []
    for key, parameter in case.model.named_parameters():
        if parameter.grad is None or not parameter.grad.isfinite().all():
            without.append(key)
        elif not parameter.grad.any():
            zero.append(key)
    case.model.zero_grad(set_to_none=True)
    if zero:
        case.notes.append(f"gradient zero throughout: {', '.join(zero)}")
    demand(not without, f"no finite gradient: {', '.join(without)}")
    return "ok"


@torch.no_grad()
def compiled(case: Case) -> str:
    """The relative distance of the compiled network's logits."""
    torch.compiler.reset()
    found = torch.compile(case.model, backend=case.backend, fullgraph=True)(case.images)
    return within(found, case.logits, COMPILE_BAR)


@torch.no_grad()
def replayed(case: Case) -> str:
    """Check that the replay's logits have the same bits."""
    size = (case.images.shape[2], case.images.shape[3])
    return within(replay(case.model, size, name=case.name)(case.images), case.logits, 0)


@torch.no_grad()
def bf16(case: Case) -> str:
    """The relative distance of the logits in bfloat16."""
    narrow = build(case.name, **case.options).bfloat16()
    narrow.load_state_dict(case.model.state_dict())
    found = narrow(case.images.bfloat16()).float()
    rounded = narrow.float()(case.images.bfloat16().float())
    bar = BF16_ROUNDING * distance(rounded, case.logits)
    return within(found, case.logits, min(bar, BF16_BAR))


@torch.no_grad()
def stored(case: Case) -> str:
    """Check that a new network with the stored weights gives logits with the same bits."""
    content = safetensors.torch.save(case.model.state_dict())
    case.model = nn.Identity()  # the last check: free memory for the new network
    fresh = build(case.name, **case.options)
    fresh.load_state_dict(safetensors.torch.load(content))
    return within(fresh(case.images), case.logits, 0)


@torch.no_grad()
def features(case: Case) -> str:
    """The number of maps; a kernel without padding, such as PiT's, may lose a position."""
    model = build(case.name, features_only=True)
    maps, info = model(case.images), model.feature_info
    if getattr(model, "output_fmt", "") == "NHWC":
        maps = [state.movedim(-1, 1) for state in maps]
    for state, channels, reduction in zip(maps, info.channels(), info.reduction(), strict=True):
        grid = [side // reduction for side in case.images.shape[2:]]
        found = tuple(state.shape)
        lost = [named - there for named, there in zip(grid, found[2:], strict=True)]
        fits = found[:2] == (2, channels) and all(0 <= side <= 1 for side in lost)
        demand(fits, f"{found} at reduction {reduction}, but {(2, channels, *grid)} declared")
        if any(lost):
            case.notes.append(f"maps of {found[2:]} at reduction {reduction}, not {tuple(grid)}")
    return f"{len(maps)} maps"


CHECKS: dict[str, Callable[[Case], str]] = {
    "forward": forward, "backward": backward, "compile": compiled, "replay": replayed,
    "bf16": bf16, "features": features, "safetensors": stored,
}  # fmt: skip


def demand(holds: bool | Tensor, otherwise: str) -> None:
    """Raise an error if a condition does not hold."""
    if not holds:
        raise ValueError(otherwise)


def within(found: Tensor, expected: Tensor, bar: float) -> str:
    """The relative distance of logits, if it is below ``bar``; 0 requires the same bits."""
    if torch.equal(found, expected):
        return "0"
    far = distance(found, expected)
    demand(far < bar, f"relative distance {far:.1e}, but the bar is {bar:.1e}")
    return f"{far:.1e}"


def distance(found: Tensor, expected: Tensor) -> float:
    """The distance between logits, relative to the expected ones."""
    return float((found - expected).norm() / expected.norm())
